"""The HTTP side of a daemon: its answers, its access rules, and its resistance to misuse."""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse

from etcd import free_port
from processes import ProcessTest, main, until

ADDRESS = "tcp://127.0.0.1:0"
# 65,536 shards make a status of several megabytes, more than sockets buffer.
LONG_STATUS = {"model": '{"name":"long","tensors":[{"name":"w","shape":[1048576]}]}', "shards": 65536}


class HttpTest(ProcessTest):
    def page_of(self, **settings):
        daemon = self.daemon("--http", ADDRESS, **settings)
        return daemon, urllib.parse.urlsplit(daemon.page)

    def ask(self, page, method, path, body=None, **headers):
        """(status, headers, text)"""
        connection = http.client.HTTPConnection(page.hostname, page.port, timeout=60)
        try:
            connection.request(method, path, body=body, headers={key.replace("_", "-"): value for key, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def post(self, page, name, arguments=None):
        status, _, text = self.ask(page, "POST", f"/api/{name}", json.dumps(arguments or {}), Content_Type="application/json")
        return status, text

    def connect(self, page, receive_buffer=None):
        raw = socket.socket()
        self.addCleanup(raw.close)
        if receive_buffer:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.settimeout(60)
        raw.connect((page.hostname, page.port))
        return raw

    def until_closed(self, raw):
        """Everything received until the daemon closed the connection."""
        received = b""
        try:
            while chunk := raw.recv(65536):
                received += chunk
        except ConnectionResetError:
            pass
        return received

    def metric(self, page, name):
        text = self.ask(page, "GET", "/metrics")[2]
        return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])


class AnswersTest(HttpTest):
    def test_every_address(self):
        daemon, page = self.page_of()
        status, headers, text = self.ask(page, "GET", "/")
        self.assertEqual(status, 200)
        self.assertIn("<title>psd</title>", text)
        self.assertEqual(headers["Content-Security-Policy"].split(";")[0], "default-src 'self'")
        self.assertEqual(headers["Cache-Control"], "no-store")
        for path in re.findall(r'(?:src|href)="([^"]+)"', text):
            self.assertTrue(path.startswith("/"), f"{path} would leave this machine")
            self.assertEqual(self.ask(page, "GET", path)[0], 200, path)
        self.assertEqual(self.ask(page, "GET", "/healthz")[::2], (200, "ok\n"))
        self.assertEqual(self.ask(page, "GET", "/readyz")[::2], (503, "waiting for a model\n"))
        self.assertEqual(json.loads(self.ask(page, "GET", "/api/status.json?x=1")[2]).keys(), daemon.status().keys())
        self.assertIn("series", json.loads(self.ask(page, "GET", "/api/history.json")[2]))
        for path in ("/no", "/api", "/api/no", "/../etc/passwd", "/api/status", "//", "/metrics/"):
            self.assertEqual(self.ask(page, "GET", path)[0], 404, path)
        self.assertEqual(self.ask(page, "POST", "/api/no", "{}", Content_Type="application/json")[0], 404)

    def test_methods(self):
        _, page = self.page_of()
        for path in ("/", "/metrics", "/api/status.json", "/api/events", "/healthz"):
            status, headers, text = self.ask(page, "HEAD", path)
            self.assertEqual((status, text), (200, ""), path)
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            status, headers, _ = self.ask(page, method, "/metrics")
            self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"), method)
        for method in ("GET", "HEAD", "PUT"):
            status, headers, _ = self.ask(page, method, "/api/reload")
            self.assertEqual((status, headers["Allow"]), (405, "POST"), method)

    def test_metrics_are_clean(self):
        daemon, page = self.page_of(shards=2)
        self.endless_trainer(daemon)
        before = daemon.status()
        text = self.ask(page, "GET", "/metrics")[2]
        after = daemon.status()
        named = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
        self.assertEqual(named, set(re.findall(r"^# HELP (\S+)", text, re.MULTILINE)))
        for name in ("psd_staleness", "psd_table_rows", "psd_last_checkpoint_age_seconds"):
            self.assertIn(name, named)
        value = lambda name: float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])
        boot = int(re.search(r"^btime (\d+)$", pathlib.Path("/proc/stat").read_text(), re.MULTILINE)[1])
        ticks = int(pathlib.Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[19])
        self.assertAlmostEqual(value("process_start_time_seconds"), boot + ticks / os.sysconf("SC_CLK_TCK"), delta=2)
        self.assertGreater(value("process_cpu_seconds_total"), 0)
        self.assertGreater(value("process_resident_memory_bytes"), 1 << 20)
        self.assertLessEqual(value("process_open_fds"), value("process_max_fds"))
        self.assertGreater(value("process_open_fds"), 5)
        for name in ("gradients", "pull_bytes"):
            self.assertLessEqual(before["counters"][name], value(f"psd_{name}_total"))
            self.assertLessEqual(value(f"psd_{name}_total"), after["counters"][name])
        self.assertGreaterEqual(value('psd_trainer_step{rank="0"}'), before["trainers"][0]["step"])
        self.assertGreaterEqual(value('psd_shard_updates_total{shard="1",group="others"}'), before["shards"][1]["version"])
        if not shutil.which("promtool"):
            self.skipTest("promtool is missing: apt install prometheus")
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))

    def test_ready_while_serving(self):
        daemon, page = self.page_of()
        self.endless_trainer(daemon)
        self.assertEqual(self.ask(page, "GET", "/readyz")[::2], (200, "serving\n"))
        until("a rate in the history", lambda: any((point[1] or 0) > 0 for point in self.history(page)["seconds"]))
        until("samples", lambda: any((point[2] or 0) > 0 for point in self.history(page)["seconds"]))

    def history(self, page):
        return json.loads(self.ask(page, "GET", "/api/history.json")[2])

    def test_unix_socket(self):
        path = self.folder / "http.sock"
        daemon = self.daemon("--http", f"unix://{path}")
        self.assertEqual(daemon.pages, [f"unix://{path}"])
        raw = socket.socket(socket.AF_UNIX)
        self.addCleanup(raw.close)
        raw.settimeout(60)
        raw.connect(str(path))
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        self.assertIn(b"200 OK", self.until_closed(raw))
        self.assert_stops(daemon)
        self.assertFalse(path.exists())


class EndsTest(HttpTest):
    """Connections that end with an answer, long before http.timeout_ms expires."""

    SLOW_MS = 600_000

    def answer(self, raw, request):
        """Everything received until the connection ended, within less time than the daemon allows an idle one."""
        raw.sendall(request)
        head, _, body = self.until_closed(raw).partition(b"\r\n\r\n")
        return head.decode(), body

    def test_connection_close(self):
        _, page = self.page_of(http__timeout_ms=self.SLOW_MS)
        for words in ("close", "Close", "TE, close"):
            for request, body in (("GET /healthz", b"ok\n"), ("HEAD /healthz", b""), ("GET /no", b"nothing is here\n")):
                head, text = self.answer(self.connect(page), f"{request} HTTP/1.1\r\nHost: localhost\r\nConnection: {words}\r\n\r\n".encode())
                self.assertIn("\r\nConnection: close", head, words)
                self.assertEqual(text, body, request)
        post = b"POST /api/reload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n"
        _, text = self.answer(self.connect(page), post + b"Content-Type: application/json\r\n\r\n{}")
        self.assertEqual(text, b'{"message":"no changes"}\n')
        _, text = self.answer(self.connect(page), post + b"\r\n{}")  # refused before its body is read
        self.assertIn(b"application/json", text)
        again = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        last = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        _, text = self.answer(self.connect(page), last + again)
        self.assertEqual(text, b"waiting for a model\n", "nothing is answered after the last one")
        until("all are gone", lambda: self.metric(page, "psd_http_connections") == 1)

    def test_old_http(self):
        _, page = self.page_of(http__timeout_ms=self.SLOW_MS)
        self.assertEqual(self.answer(self.connect(page), b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")[1], b"ok\n")
        raw = self.connect(page)
        for byte in b"GET /healthz HTTP/1.":  # in pieces of one byte
            raw.sendall(bytes([byte]))
        self.assertEqual(self.answer(raw, b"0\nHost: localhost\r\n\r\n")[1], b"ok\n")
        until("both are gone", lambda: self.metric(page, "psd_http_connections") == 1)

    def test_others_continue(self):
        _, page = self.page_of(http__timeout_ms=self.SLOW_MS)
        connection = http.client.HTTPConnection(page.hostname, page.port, timeout=60)
        self.addCleanup(connection.close)
        for path in ("/healthz", "/healthz?HTTP/1.0", "/no"):
            for words in ("keep-alive", "closed", ""):
                connection.request("GET", path, headers={"Connection": words})
                answer = connection.getresponse()
                self.assertIsNone(answer.getheader("Connection"), words)
                answer.read()
                self.assertIsNotNone(connection.sock, "it stays")
        connection.request("GET", "/healthz", headers={"Connection": "close"})
        answer = connection.getresponse()
        self.assertEqual((answer.getheader("Connection"), answer.read()), ("close", b"ok\n"))


class EventsTest(HttpTest):
    def events(self, page):
        """Yields (kind, id, document)."""
        raw = self.connect(page)
        raw.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = http.client.HTTPResponse(raw)
        answer.begin()
        self.addCleanup(answer.close)
        self.assertEqual(answer.getheader("Content-Type"), "text/event-stream")
        fields = {}
        while line := answer.readline().decode().rstrip("\n") if not answer.isclosed() else None:
            key, _, value = line.partition(": ")
            fields[key] = value
            if key == "data":
                self.assertEqual(answer.readline(), b"\n")
                yield fields["event"], int(fields["id"]), json.loads(value)

    def test_whole_then_changes(self):
        daemon, page = self.page_of()
        stream, other = self.events(page), self.events(page)
        kind, number, whole = next(stream)
        self.assertEqual(kind, "whole")
        self.assertEqual(whole["status"]["pid"], daemon.pid)
        kind, second, delta = next(stream)
        self.assertEqual((kind, second), ("delta", number + 1))
        self.assertNotIn("pid", delta["status"])
        self.assertIn("uptime_seconds", delta["status"])
        self.assertGreater(delta["time"], whole["time"])
        self.assertEqual(next(other)[0], "whole")
        self.assertGreaterEqual(self.metric(page, "psd_http_watchers"), 2)

    def test_watchers_that_leave(self):
        _, page = self.page_of()
        for _ in range(5):
            stream = self.events(page)
            next(stream)
        self.doCleanups()  # all disconnect
        until("no peer watches", lambda: self.metric(page, "psd_http_watchers") == 0)
        until("their connections are gone", lambda: self.metric(page, "psd_http_connections") == 1)


class ActionsTest(HttpTest):
    def test_reload_and_stop(self):
        config = self.write("psd.json", '{"log": {"level": "info"}}')
        daemon = self.daemon("--config", config, "--http", ADDRESS)
        page = urllib.parse.urlsplit(daemon.page)
        self.assertEqual(self.post(page, "reload"), (200, '{"message":"no changes"}\n'))
        self.write("psd.json", '{"log": {"level": "warn"}}')
        self.assertIn("log.level", self.post(page, "reload")[1])
        self.write("psd.json", '{"threads": 7}')
        status, text = self.post(page, "reload")
        self.assertEqual(status, 400)
        self.assertIn("threads: cannot change while the daemon runs", text)
        self.assertEqual(self.post(page, "stop")[0], 200)
        self.assert_ends(daemon)

    def test_bodies(self):
        daemon, page = self.page_of(http__timeout_ms=300)
        self.assertEqual(self.ask(page, "POST", "/api/stop", "")[0], 415)
        self.assertEqual(self.ask(page, "POST", "/api/stop", "{}", Content_Type="text/plain")[0], 415)
        self.assertEqual(self.ask(page, "POST", "/api/stop", "a=b", Content_Type="application/x-www-form-urlencoded")[0], 415)
        for other in ("application/jsonx", "application/json-patch+json", "application/x;application/json", "json"):
            self.assertEqual(self.ask(page, "POST", "/api/stop", "{}", Content_Type=other)[0], 415, other)
        for same in ("Application/JSON", "application/json;charset=utf-8", "APPLICATION/json ; charset=UTF-8"):
            self.assertEqual(self.ask(page, "POST", "/api/reload", "{}", Content_Type=same)[0], 200, same)
        for body, words in ((b"[]", "must be an object"), (b"{", "the end of the text"), (b"\0", "zero byte"), (b'"stop"', "must be an object"),
                            (b'{"rank":\xff}', "line 1, column 9"), (b'{"a":1,\x1b[31m}', "line 1, column 8"),
                            (b'{"rank\x07":1,"rank\x07":2}', "the body")):
            status, headers, text = self.ask(page, "POST", "/api/stop", body, Content_Type="application/json")
            self.assertEqual((status, headers["Content-Type"]), (400, "application/json"), body)
            self.assertEqual(list(json.loads(text)), ["error"], body)
            self.assertIn(words, json.loads(text)["error"], body)
            self.assertTrue(json.loads(text)["error"].isprintable(), text)
        raw = self.connect(page)
        raw.sendall(b"POST /api/stop HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999\r\n\r\n")
        self.assertIn(b" 413 ", self.until_closed(raw))
        chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
        raw = self.connect(page)
        raw.sendall(b"POST /api/stop HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 2)
        self.assertIn(b" 413 ", self.until_closed(raw))
        raw = self.connect(page)  # announces ten bytes and sends one
        raw.sendall(b"POST /api/stop HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{")
        self.assertIn(b" 408 ", self.until_closed(raw))
        self.assertTrue(daemon.runs())

    def test_bodies_of_two_lengths(self):
        daemon, page = self.page_of()
        for wrong in (b"Content-Length: 2\r\nContent-Length: 2\r\n", b"Content-Length: 2\r\nContent-Length: 3\r\n", b"Content-Length: two\r\n",
                      b"Transfer-Encoding: none\r\n"):
            raw = self.connect(page)
            raw.sendall(b"POST /api/stop HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + wrong + b"\r\n{}")
            answer = self.until_closed(raw)
            self.assertTrue(answer.startswith(b"HTTP/1.1 400 Bad Request\r\n"), answer)
            self.assertTrue(answer.endswith(b"the headers that describe the body are invalid\n"), answer)
        self.assertTrue(daemon.runs())

    def test_other_sites(self):
        daemon, page = self.page_of()
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", "localhost:evil.example", "[::1].evil.example", ""):
            self.assertEqual(self.ask(page, "GET", "/api/status.json", Host=host)[0], 421, host)
            self.assertEqual(self.ask(page, "POST", "/api/stop", "{}", Host=host, Content_Type="application/json")[0], 421, host)
        for host in ("localhost", "LocalHost:8080", "127.0.0.1", "[::1]:80"):
            self.assertEqual(self.ask(page, "GET", "/api/status.json", Host=host)[0], 200, host)
        # A browser's preflight request, before another site's page may send JSON, is not granted.
        status, headers, _ = self.ask(page, "OPTIONS", "/api/stop", Origin="http://evil.example",
                                      Access_Control_Request_Method="POST")
        self.assertEqual(status, 405)
        self.assertFalse([name for name in headers if name.lower().startswith("access-control")])
        raw = self.connect(page)
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        self.assertIn(b" 421 ", raw.recv(4096))
        self.assertTrue(daemon.runs())


class LimitsTest(HttpTest):
    def test_slow_and_silent_requests(self):
        _, page = self.page_of(http__timeout_ms=300)
        silent, slow, idle = (self.connect(page) for _ in range(3))
        slow.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for raw in (silent, slow, idle):
            self.until_closed(raw)

    def test_garbage_and_huge_headers(self):
        daemon, page = self.page_of()
        for text in (b"\0" * 100 + b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
                     b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 300_000 + b"\r\n\r\n"):
            raw = self.connect(page)
            try:
                raw.sendall(text)
                raw.shutdown(socket.SHUT_WR)
            except (BrokenPipeError, ConnectionResetError, OSError):
                pass  # it was cut off
            self.assertNotIn(b" 200 ", self.until_closed(raw), text[:40])
        self.assertEqual(self.ask(page, "GET", "/healthz")[0], 200)
        self.assertLess(daemon.status()["resident_bytes"], 300 << 20)

    def test_connections(self):
        _, page = self.page_of(http__connections=3)
        held = [self.connect(page) for _ in range(3)]
        for raw in held:
            raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertIn(b"200 OK", raw.recv(4096))
        self.assertEqual(self.until_closed(self.connect(page)), b"")
        for raw in held:
            raw.close()
        until("there is room again, and it was counted", lambda: self.answers(page) and self.refused(page))

    def refused(self, page):
        try:
            return self.metric(page, "psd_http_connections_refused_total") >= 1
        except (http.client.HTTPException, OSError):
            return False

    def answers(self, page):
        try:
            return self.ask(page, "GET", "/healthz")[0] == 200
        except (http.client.HTTPException, OSError):
            return False

    def test_readers_that_do_not_read(self):
        daemon, page = self.page_of(http__timeout_ms=500, **LONG_STATUS)
        lazy = []
        for path in (b"/api/status.json", b"/api/events"):
            raw = self.connect(page, receive_buffer=4096)
            raw.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            lazy.append(raw)
        until("both are cut off", lambda: self.metric(page, "psd_http_timeouts_total") >= 2)
        until("their connections are gone", lambda: self.metric(page, "psd_http_connections") == 1)
        self.assertEqual(self.metric(page, "psd_http_watchers"), 0)
        self.assertTrue(daemon.runs())


    def test_a_follower_that_does_not_read_blocks_no_operator(self):
        daemon, page = self.page_of(http__connections=8)
        deaf = []
        for _ in range(20):
            raw = self.connect(page, receive_buffer=4096)
            raw.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertTrue(raw.recv(12).startswith(b"HTTP/1.1 200"))  # each of them, replacing another one
            deaf.append(raw)
        self.assertEqual(self.metric(page, "psd_http_watchers"), 6)
        self.assertEqual(self.metric(page, "psd_http_connections"), 7)
        self.assertEqual(self.post(page, "reload")[0], 200)
        for raw in deaf[:14]:
            self.until_closed(raw)


class TokenTest(HttpTest):
    def test_roles(self):
        reader, admin = self.make_token("looks", "reader"), self.make_token("ops", "admin")
        daemon, page = self.page_of(auth__tokens=str(self.folder / "tokens"), listen=(self.unix_address(),))
        ask = lambda method, path, token=None: self.ask(page, method, path, "{}" if method == "POST" else None,
                                                        **({"Authorization": f"Bearer {token}"} if token else {}),
                                                        **({"Content_Type": "application/json"} if method == "POST" else {}))
        for path in ("/healthz", "/readyz", "/", "/style.css"):
            for token in (None, "wrong"):
                self.assertIn(ask("GET", path, token)[0], (200, 503) if path == "/readyz" else (200,), path)
        for path in ("/metrics", "/api/status.json", "/api/daemons.json", "/api/history.json", "/api/events"):
            status, headers, _ = ask("GET", path)
            self.assertEqual((status, headers.get("WWW-Authenticate")), (401, "Bearer"), path)
            self.assertEqual(ask("GET", path, "wrong")[0], 403, path)
        self.assertEqual(json.loads(ask("GET", "/api/caller.json", reader)[2]), {"role": "reader", "caller": "token 'looks'"})
        self.assertEqual(json.loads(ask("GET", "/api/caller.json", admin)[2]), {"role": "admin", "caller": "token 'ops'"})
        self.assertEqual(ask("GET", "/api/caller.json")[0], 401)
        self.assertEqual(ask("GET", "/api/config.json", reader)[0], 403)
        told = json.loads(ask("GET", "/api/config.json", admin)[2])
        self.assertEqual(told["config"]["auth"]["tokens"], str(self.folder / "tokens"))
        self.assertIn("auth.tokens", told["changed"])
        self.assertNotIn("membership.lease_ms", told["changed"])
        self.assertIn("psd_logins_refused_total 5\n", ask("GET", "/metrics", reader)[2])
        for token in (reader, admin):
            self.assertEqual(ask("GET", "/metrics", token)[0], 200)
        for scheme, status in (("bearer", 200), ("BEARER", 200), ("Basic", 401)):
            self.assertEqual(self.ask(page, "GET", "/metrics", Authorization=f"{scheme} {reader}")[0], status, scheme)
        self.assertEqual(ask("POST", "/api/reload")[0], 401)
        self.assertEqual(ask("POST", "/api/reload", reader)[0], 403)
        self.assertEqual(ask("POST", "/api/reload", admin)[0], 200)
        tokens = self.folder / "tokens"
        tokens.write_text(re.sub("^(looks .*)$", r"\1 expires=2020-01-01T00:00:00Z", tokens.read_text(), flags=re.MULTILINE))
        self.assertEqual(ask("POST", "/api/reload", admin)[0], 200)
        self.assertEqual(ask("GET", "/metrics", reader)[::2], (403, "the token of 'looks' expired at 2020-01-01T00:00:00Z\n"))
        self.assertEqual(ask("GET", "/metrics", "wrong")[::2], (403, "the daemon does not know this token\n"))
        self.assertTrue(daemon.runs())

    def test_a_wrong_token_is_answered_late(self):
        reader = self.make_token("looks", "reader")
        _, page = self.page_of(auth__tokens=str(self.folder / "tokens"), listen=(self.unix_address(),))

        def seconds(token):
            began = time.monotonic()
            self.ask(page, "GET", "/metrics", Authorization=f"Bearer {token}")
            return time.monotonic() - began

        wrong = min(seconds("wrong") for _ in range(3))
        self.assertGreaterEqual(wrong, 0.5)
        self.assertLess(min(seconds(reader) for _ in range(3)), wrong)

    def test_a_follower_ends_when_its_token_does(self):
        reader, admin = self.make_token("looks", "reader"), self.make_token("ops", "admin")
        daemon, page = self.page_of(auth__tokens=str(self.folder / "tokens"), listen=(self.unix_address(),))
        metrics = lambda: self.ask(page, "GET", "/metrics", None, Authorization=f"Bearer {admin}")[2]
        raw = self.connect(page)
        raw.sendall(f"GET /api/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {reader}\r\n\r\n".encode())
        until("it follows", lambda: "psd_http_watchers 1\n" in metrics())
        tokens = self.folder / "tokens"
        tokens.write_text("".join(line for line in tokens.read_text().splitlines(True) if not line.startswith("looks ")))
        daemon.signal(signal.SIGHUP)
        until("it was cut off", lambda: "psd_http_watchers 0\n" in metrics())
        self.assertTrue(daemon.runs())


class DaemonsTest(HttpTest):
    """The view of one of several daemons on all of them."""

    def several(self, count, environment=None, addresses=None, **settings):
        addresses = addresses or [self.unix_address(f"{i}.sock") for i in range(count)]
        return [self.daemon("--http", ADDRESS, "--index", str(i), listen=(addresses[i],), policy="locked", daemons=addresses,
                            environment=environment, **settings) for i in range(count)]

    def rows(self, daemon, **headers):
        status, _, text = self.ask(urllib.parse.urlsplit(daemon.page), "GET", "/api/daemons.json", **headers)
        self.assertEqual(status, 200, text)
        return json.loads(text)["daemons"]

    def test_a_daemon_alone_tells_of_none(self):
        daemon, _ = self.page_of()
        self.assertEqual(self.rows(daemon), [])

    def test_all_are_rows(self):
        daemons = self.several(3)
        for place, daemon in enumerate(daemons):
            rows = self.rows(daemon)
            self.assertEqual([row["partition"] for row in rows], [0, 1, 2])
            self.assertEqual([row["here"] for row in rows], [each == place for each in range(3)])
            for row, other in zip(rows, daemons):
                self.assertEqual((row["answers"], row["state"], row["role"]), (True, "waiting for a model", "primary"))
                self.assertEqual(row["page"], "" if row["here"] else other.pages[0])

    def test_a_missing_or_stopped_daemon_delays_no_answer(self):
        daemons = self.several(3)
        self.assertEqual(len(self.rows(daemons[0])), 3)
        daemons[1].kill()
        daemons[2].signal(signal.SIGSTOP)

        def away():
            return [not row["answers"] for row in self.rows(daemons[0])]

        until("both are away", lambda: away() == [False, True, True])
        rows = self.rows(daemons[0])
        self.assertIn(daemons[1].address, rows[1]["why"])
        self.assertIn("no answer within", rows[2]["why"])
        self.assertEqual(self.ask(urllib.parse.urlsplit(daemons[0].page), "GET", "/metrics")[0], 200)
        daemons[2].signal(signal.SIGCONT)
        until("one is back", lambda: away() == [False, True, False])

    def test_they_show_each_other_a_token(self):
        page, person = self.make_token_file("page", "reader"), {"Authorization": f"Bearer {self.make_token('person', 'reader')}"}
        # Over TCP, since at its own sockets a user needs none.
        settings = {"auth__tokens": str(self.folder / "tokens"), "addresses": [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]}
        bare = self.several(2, {"PSD_TOKEN": "", "PSD_TOKEN_FILE": ""}, **settings)
        refused = self.rows(bare[0], **person)[1]
        self.assertFalse(refused["answers"])
        self.assertIn("token", refused["why"])
        for daemon in bare:
            daemon.kill()
        shown = self.several(2, {"PSD_TOKEN_FILE": str(page)}, **settings)
        self.assertTrue(self.rows(shown[0], **person)[1]["answers"])


class AddressTest(HttpTest):
    def test_only_this_machine(self):
        for address in ("tcp://*:0", "tcp://0.0.0.0:0", "tcp://192.168.1.7:80", "tcp://[::]:80", "tcp://example.org:80"):
            self.assert_fails(self.start_psd("--http", address), "http.listen[0]", "can be reached from other machines")
        self.assert_fails(self.start_psd("--http", "localhost"), "--http localhost: http.listen[0]", "tcp://")
        self.assert_fails(self.start_psd("--set", "http=3", "--http", ADDRESS), "http: must be an object")

    def test_insecure(self):
        daemon = self.daemon("--insecure", "--http", "tcp://0.0.0.0:0")
        page = urllib.parse.urlsplit(daemon.page)
        self.assertEqual(self.ask(page, "GET", "/healthz")[0], 200)

    def test_several_networks_are_no_part_of_a_url(self):
        daemon = self.daemon("--http", f"{ADDRESS}?multipath")
        self.assertRegex(daemon.pages[0], r"^http://127\.0\.0\.1:\d+/$")
        self.assertEqual(self.ask(urllib.parse.urlsplit(daemon.page), "GET", "/healthz")[0], 200)

    def test_tls_requires_a_certificate_and_beyond_this_machine_authentication(self):
        self.assert_fails(self.start_psd("--http", "tls://localhost:0"), "http.listen[0]", "tls:// needs `tls`")
        files = '{"certificate":"server.pem","key":"server.key"}'
        self.assert_fails(self.start_psd("--http", "tls://*:0", "--set", f"tls={files}"), "http.listen[0]",
                          "any host could send commands: give `auth` with tokens, or tls.require_client")

    def test_address_in_use(self):
        _, page = self.page_of()
        again = f"tcp://{page.hostname}:{page.port}"
        self.assert_fails(self.start_psd("--listen", ADDRESS, "--http", again), "http.listen", "in use")

    def test_off_unless_asked_for(self):
        self.assertEqual(self.daemon().pages, [])

    def test_kill(self):
        daemon, page = self.page_of()
        daemon.kill()
        again = self.daemon("--http", f"tcp://{page.hostname}:{page.port}")
        self.assertEqual(self.ask(page, "GET", "/healthz")[0], 200)
        self.assert_stops(again)


if __name__ == "__main__":
    main()
