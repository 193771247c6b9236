"""TLS from a user's view: certificates of every kind, valid and invalid, peers that do not speak it, and reloads."""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
import unittest
import urllib.parse

import certificates
import processes


class TlsTest(processes.ProcessTest):
    def setUp(self):
        self.authority = certificates.Authority(self.folder)

    def tls_daemon(self, alternatives="DNS:localhost,IP:127.0.0.1,IP:::1", expired=False, authority=None, listen="tls://127.0.0.1:0",
                   settings=None, **others):
        """A daemon with a Unix socket, for the test itself, and TLS."""
        certificate, key = (authority or self.authority).sign("server", "psd-server", alternatives, expired)
        tls = {"certificate": str(certificate), "key": str(key), **(settings or {})}
        daemon = self.daemon(listen=(self.unix_address(), listen), tls=json.dumps(tls), **others)
        daemon.tls = daemon.addresses[1]
        return daemon


class Tls(TlsTest):
    def status(self, server, *arguments):
        return self.start_psd("status", "--server", server, "--tls-ca", self.authority.path, *arguments)

    @staticmethod
    def named(address, host):
        return f"tls://{host}:{address.rpartition(':')[2]}"

    def test_trains_shows_and_stops(self):
        daemon = self.tls_daemon(policy="locked")
        self.assert_ends(self.status(daemon.tls))
        if processes.TRAINER:
            trainer = self.train(daemon.tls, steps=20, more=("--tls-ca", self.authority.path, "--connections", 2))
            self.assert_ends(trainer)
            self.assertEqual(daemon.counter("gradients"), 20)
            self.assert_fails(self.train(daemon.tls, steps=2, more=("--tls-ca", self.authority.path, "--transport", "shm")),
                              "memory is shared over Unix sockets only")
        stopped = self.start_psd("stop", "--discard", "--server", daemon.tls, environment={"PSD_TLS_CA": str(self.authority.path)})
        self.assert_ends(stopped)
        self.assert_ends(daemon)

    def test_a_daemon_is_known_by_name_and_by_address(self):
        daemon = self.tls_daemon("DNS:localhost,IP:127.0.0.1")
        self.assert_ends(self.status(daemon.tls))
        self.assert_ends(self.status(self.named(daemon.tls, "localhost")))
        self.assert_stops(daemon)
        nameless = self.tls_daemon("DNS:psd.example.org")
        self.assert_fails(self.status(nameless.tls), "cannot be trusted: IP address mismatch")
        self.assert_fails(self.status(self.named(nameless.tls, "localhost")), "cannot be trusted: hostname mismatch")
        self.assert_stops(nameless)

    def test_a_certificate_that_has_expired(self):
        daemon = self.tls_daemon(expired=True)
        self.assert_fails(self.status(daemon.tls), "cannot be trusted: certificate has expired")
        self.assertEqual(daemon.counter("handshakes_refused"), 1)
        self.assertRegex(daemon.err, r"warn.*tls.certificate: '.*server.pem' expired on 2020-01-02T00:00:00Z, and clients reject it")
        self.assert_stops(daemon)

    def test_a_certificate_that_is_about_to_expire_is_warned_of(self):
        daemon = self.tls_daemon()
        self.assertNotIn("expire", daemon.err)
        self.assertGreater(daemon.status()["certificate_expiry_timestamp_seconds"], time.time() + 7 * 86400)
        self.authority.sign("server", "psd-server", "IP:127.0.0.1", days=3)
        for times in (1, 2):  # even if nothing has changed
            self.assert_ends(self.start_psd("reload", "--server", daemon.address))
            warnings = re.findall(r"warn.*tls.certificate: '.*server.pem' expires on \S+Z: replace it and reload", daemon.err)
            self.assertEqual(len(warnings), times)
        self.assert_ends(self.status(daemon.tls))
        self.authority.sign("server", "psd-server", "IP:127.0.0.1", days=9)
        self.assert_ends(self.start_psd("reload", "--server", daemon.address))
        self.assertEqual(daemon.err.count("expires on"), 2)
        self.assert_stops(daemon)

    def test_openssl_is_loaded_by_who_speaks_tls_alone(self):
        for daemon, loaded in ((self.daemon("--http", "tcp://127.0.0.1:0"), False), (self.tls_daemon(), True)):
            self.assert_ends(self.start_psd("status", "--server", daemon.address))
            maps = pathlib.Path(f"/proc/{daemon.pid}/maps").read_text()
            self.assertIn("libc.so", maps)
            self.assertEqual([library in maps for library in ("libssl", "libcrypto")], [loaded] * 2, daemon.arguments)

    def test_a_certificate_of_an_authority_that_is_not_trusted(self):
        daemon = self.tls_daemon(authority=certificates.Authority(self.folder, "stranger"))
        self.assert_fails(self.status(daemon.tls), "cannot be trusted: unable to get local issuer certificate")
        if processes.TRAINER:  # psd-trainer does not retry
            trainer = self.train(daemon.tls, steps=2, more=("--tls-ca", self.authority.path, "--connect-timeout", 3600))
            self.assert_fails(trainer, "cannot be trusted")
        self.assert_stops(daemon)

    def test_clients_show_certificates_where_they_must(self):
        daemon = self.tls_daemon(settings={"client_ca": str(self.authority.path), "require_client": True},
                                 auth='{"certificates":{"trainer-*":"trainer","ops":"admin"}}')
        foreign = certificates.Authority(self.folder, "stranger").sign("rogue", "ops")
        trainer, admin, other = (self.authority.sign(name) for name in ("trainer-1", "ops", "somebody"))
        late = self.authority.sign("late", "ops", expired=True)

        def flags(pair):
            return "--tls-cert", pair[0], "--tls-key", pair[1]

        self.assert_fails(self.status(daemon.tls), "refused by the other end's TLS", "certificate required")
        self.assert_fails(self.status(daemon.tls, *flags(foreign)), "refused by the other end's TLS", "unknown ca")
        self.assert_fails(self.status(daemon.tls, *flags(late)), "refused by the other end's TLS", "certificate expired")
        self.assert_fails(self.status(daemon.tls, *flags(other)), "auth.certificates has no role for 'somebody'")
        self.assert_ends(self.status(daemon.tls, *flags(trainer)))
        stop = ("stop", "--discard", "--server", daemon.tls, "--tls-ca", self.authority.path)
        self.assert_fails(self.start_psd(*stop, *flags(trainer)), "this requires role admin; 'trainer-1' has role trainer")
        if processes.TRAINER:
            self.assert_fails(self.train(daemon.tls, steps=2, more=("--tls-ca", self.authority.path, "--connect-timeout", 3600)),
                              "refused by the other end's TLS")
            self.assert_ends(self.train(daemon.tls, steps=2, more=("--tls-ca", self.authority.path, *flags(trainer))))
        self.assert_ends(self.start_psd(*stop, *flags(admin)))
        self.assert_ends(daemon)

    def test_required_certificates_open_an_address_to_other_machines(self):
        settings = {"client_ca": str(self.authority.path)}
        with self.assertRaises(processes.NotReady) as refused:
            self.tls_daemon(listen="tls://*:0", settings=settings)
        self.assertIn("can be reached from other machines", str(refused.exception))
        daemon = self.tls_daemon(listen="tls://*:0", settings={**settings, "require_client": True})
        self.assert_stops(daemon)

    def test_mismatches_of_tls_and_plain_peers(self):
        daemon = self.tls_daemon(limits__login_timeout_ms=300)
        plain = self.daemon()
        self.assert_fails(self.start_psd("status", "--server", daemon.tls.replace("tls://", "tcp://")), "the connection broke")
        self.assert_fails(self.status(plain.address.replace("tcp://", "tls://")), "TLS handshake")
        host, port = "127.0.0.1", int(daemon.tls.rpartition(":")[2])
        with socket.create_connection((host, port), timeout=processes.WAIT_S) as silent:
            silent.settimeout(processes.WAIT_S)
            self.assertEqual(silent.recv(1), b"", "a peer that never shakes hands is cut off")
        processes.until("it is logged", lambda: "no TLS handshake within limits.login_timeout_ms (300)" in daemon.err)
        self.assert_ends(self.status(daemon.tls))
        daemon.until_status("nothing but the asking connection is open", lambda status: status["gauges"]["connections_open"] == 1)
        self.assertEqual(daemon.counter("handshakes_refused"), 2)
        self.assert_stops(plain)
        self.assert_stops(daemon)

    @unittest.skipUnless(processes.TRAINER, "psd-trainer is not built")
    def test_a_trainer_tries_again_where_the_connection_breaks_in_the_handshake(self):
        """As if a daemon died at that moment."""
        tries = []
        with socket.create_server(("127.0.0.1", 0)) as listening:

            def reset_all():
                while True:
                    try:
                        peer, _ = listening.accept()
                    except OSError:
                        return
                    peer.recv(1)
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
                    peer.close()
                    tries.append(peer)

            threading.Thread(target=reset_all, daemon=True).start()
            address = f"tls://127.0.0.1:{listening.getsockname()[1]}"
            trainer = self.train(address, steps=2, more=("--tls-ca", self.authority.path, "--connect-timeout", 1))
            self.assert_fails(trainer, "no psd daemon answered within ")
            self.assertGreater(len(tries), 1)
            self.assert_fails(self.status(address), "the connection broke in the TLS handshake")
            listening.shutdown(socket.SHUT_RDWR)

    def test_only_the_newest_version_is_spoken(self):
        daemon = self.tls_daemon()
        host, port = "127.0.0.1", int(daemon.tls.rpartition(":")[2])
        for newest, works in ((ssl.TLSVersion.TLSv1_2, False), (ssl.TLSVersion.TLSv1_3, True)):
            context = ssl.create_default_context(cafile=self.authority.path)
            context.maximum_version = newest
            with socket.create_connection((host, port), timeout=processes.WAIT_S) as connection:
                if works:
                    with context.wrap_socket(connection, server_hostname="localhost") as secured:
                        self.assertEqual(secured.version(), "TLSv1.3")
                else:
                    self.assertRaises(ssl.SSLError, context.wrap_socket, connection, server_hostname="localhost")
        self.assert_stops(daemon)

    @unittest.skipUnless(processes.TRAINER, "psd-trainer is not built")
    def test_certificates_are_read_again_while_a_trainer_works(self):
        daemon = self.tls_daemon()
        trainer = self.train(daemon.tls, steps=10_000_000, more=("--tls-ca", self.authority.path))
        trains = daemon.until_status("it trains", lambda status: status["trainers"] and status["trainers"][0]["step"] > 2)
        self.authority.sign("server", "psd-server-2", "DNS:other.example.org")
        daemon.signal(signal.SIGHUP)
        processes.until("the new certificate is shown", lambda: "mismatch" in self.complaint_of(daemon.tls))
        step = trains["trainers"][0]["step"]
        daemon.until_status("it continues", lambda status: status["trainers"] and status["trainers"][0]["step"] > step + 100)
        self.assertEqual(daemon.status()["counters"]["trainers_returned"], 0)
        # A wrong certificate changes nothing.
        (self.folder / "server.pem").write_text("no certificate\n")
        self.assert_fails(self.start_psd("reload", "--server", daemon.address), "tls: ", "server.pem: holds no certificate")
        self.assertIn("mismatch", self.complaint_of(daemon.tls))
        self.authority.sign("server", "psd-server-3", "IP:127.0.0.1")
        for told in ("tls.certificate: reloaded, tls.key: reloaded", "no changes"):
            reload = self.start_psd("reload", "--server", daemon.address)
            self.assert_ends(reload)
            self.assertIn(told, reload.out)
        self.assert_ends(self.status(daemon.tls))
        self.assertTrue(trainer.runs())
        self.assert_stops(daemon)

    def test_a_reload_takes_no_key_of_another_kind_and_waits_for_no_pipe(self):
        daemon = self.tls_daemon()
        key = self.folder / "server.key"
        kept = key.read_bytes()
        self.authority.other_kind_of_key("server")
        self.assert_fails(self.start_psd("reload", "--server", daemon.address), "server.key: holds no private key")
        self.assert_ends(self.status(daemon.tls))
        key.unlink()
        os.mkfifo(key)
        self.assert_fails(self.start_psd("reload", "--server", daemon.address), "server.key: is a device or a pipe")
        self.assert_ends(self.status(daemon.tls))
        key.unlink()
        key.write_bytes(kept)
        self.assert_ends(self.start_psd("reload", "--server", daemon.address))
        self.assert_stops(daemon)

    def test_a_client_says_that_its_key_is_of_another_kind(self):
        daemon = self.tls_daemon(settings={"client_ca": str(self.authority.path)})
        certificate, _ = self.authority.sign("client")
        rsa = self.authority.other_kind_of_key("rsa")
        self.assert_fails(self.status(daemon.tls, "--tls-cert", certificate, "--tls-key", rsa), "rsa.key: holds no private key")
        self.assert_stops(daemon)

    def complaint_of(self, server):
        process = self.status(server)
        process.wait()
        return process.err

    def test_files_that_are_wrong_keep_a_daemon_from_its_start(self):
        certificate, key = self.authority.sign("server")
        _, other = self.authority.sign("other")
        wrong = self.write("wrong.pem", "nothing\n")
        rsa = self.authority.other_kind_of_key("rsa")
        pipe = self.folder / "pipe.pem"
        os.mkfifo(pipe)
        for tls, words in (({"certificate": str(certificate), "key": str(other)}, "holds no private key"),
                           ({"certificate": str(certificate), "key": str(rsa)}, "rsa.key: holds no private key"),
                           ({"certificate": str(pipe), "key": str(key)}, "pipe.pem: is a device or a pipe"),
                           ({"certificate": str(certificate), "key": str(self.folder)}, "is a folder"),
                           ({"certificate": str(wrong), "key": str(key)}, "wrong.pem: holds no certificate"),
                           ({"certificate": str(self.folder / "none.pem"), "key": str(key)}, "none.pem: cannot be read"),
                           ({"certificate": str(certificate), "key": str(key), "client_ca": str(wrong)}, "authorities")):
            with self.subTest(tls=tls):
                with self.assertRaises(processes.NotReady) as failed:
                    self.daemon(listen=("tls://127.0.0.1:0",), tls=json.dumps(tls))
                self.assertIn(words, str(failed.exception))


class Https(TlsTest):
    """The page over TLS: with tokens, with certificates, and with a certificate that changes."""

    def https_daemon(self, listen="tls://127.0.0.1:0", timeout_ms=15000, settings=None, **others):
        http = {"listen": [listen], "timeout_ms": timeout_ms}
        daemon = self.tls_daemon(settings=settings, http=json.dumps(http), **others)
        self.assertTrue(daemon.page.startswith("https://"), daemon.page)
        return daemon

    def context(self, pair=None):
        context = ssl.create_default_context(cafile=self.authority.path)
        if pair:
            context.load_cert_chain(*pair)
        return context

    def connection(self, daemon, pair=None):
        page = urllib.parse.urlsplit(daemon.page)
        connection = http.client.HTTPSConnection("127.0.0.1", page.port, timeout=processes.WAIT_S, context=self.context(pair))
        self.addCleanup(connection.close)
        return connection

    def ask(self, daemon, method, path, pair=None, token=None, **headers):
        connection = self.connection(daemon, pair)
        headers = {"Content-Type": "application/json", **headers, **({"Authorization": f"Bearer {token}"} if token else {})}
        connection.request(method, path, "{}" if method == "POST" else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def test_a_token_goes_encrypted(self):
        reader, admin = self.make_token("looks", "reader"), self.make_token("ops", "admin")
        # 65,536 shards make a status of megabytes, many TLS records.
        daemon = self.https_daemon(auth__tokens=str(self.folder / "tokens"), shards=65536,
                                   model='{"name":"long","tensors":[{"name":"w","shape":[1048576]}]}')
        self.assertEqual(self.ask(daemon, "GET", "/")[0], 200)
        self.assertEqual(self.ask(daemon, "GET", "/healthz", Host="psd.example.org")[0], 200)
        self.assertEqual(self.ask(daemon, "GET", "/api/status.json")[0], 401)
        self.assertEqual(self.ask(daemon, "GET", "/api/status.json", token="wrong")[0], 403)
        status, text = self.ask(daemon, "GET", "/api/status.json", token=reader)
        self.assertEqual((status, len(json.loads(text)["shards"])), (200, 65536))
        self.assertEqual(self.ask(daemon, "POST", "/api/reload", token=reader)[0], 403)
        self.assertEqual(self.ask(daemon, "POST", "/api/reload", token=admin)[0], 200)
        connection = self.connection(daemon)
        for _ in range(3):  # over one connection
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {admin}"})
            answer = connection.getresponse()
            self.assertIn(b"psd_uptime_seconds", answer.read())
        connection.request("GET", "/api/events", headers={"Authorization": f"Bearer {reader}"})
        follows = connection.getresponse()
        self.assertEqual(follows.readline(), b"event: whole\n")
        self.assert_stops(daemon)

    def test_a_peer_that_does_not_finish_the_handshake(self):
        daemon = self.https_daemon(timeout_ms=300)
        page = urllib.parse.urlsplit(daemon.page)
        plain = http.client.HTTPConnection("127.0.0.1", page.port, timeout=processes.WAIT_S)
        self.addCleanup(plain.close)
        plain.request("GET", "/healthz")
        self.assertRaises((http.client.HTTPException, OSError), plain.getresponse)
        with socket.create_connection(("127.0.0.1", page.port), timeout=processes.WAIT_S) as silent:
            self.assertEqual(silent.recv(1), b"", "a peer that never shakes hands is cut off")
        processes.until("it is logged", lambda: "over HTTP: no TLS handshake within http.timeout_ms (300)" in daemon.err)
        daemon.until_status("both are counted", lambda status: status["counters"]["handshakes_refused"] == 2)
        strangers = ssl.create_default_context()  # do not trust this authority
        refuses = http.client.HTTPSConnection("127.0.0.1", page.port, timeout=processes.WAIT_S, context=strangers)
        self.addCleanup(refuses.close)
        self.assertRaises(ssl.SSLError, refuses.request, "GET", "/healthz")
        self.assertEqual(self.ask(daemon, "GET", "/healthz"), (200, "ok\n"))
        self.assert_stops(daemon)

    def test_certificates_give_roles(self):
        reader = self.make_token("looks", "reader")
        auth = {"tokens": str(self.folder / "tokens"), "certificates": {"trainer-*": "trainer", "ops": "admin"}}
        daemon = self.https_daemon(settings={"client_ca": str(self.authority.path)}, auth=json.dumps(auth))
        trainer, admin, other = (self.authority.sign(name) for name in ("trainer-1", "ops", "somebody"))
        for pair, look, act in ((None, 401, 401), (other, 401, 401), (trainer, 200, 403), (admin, 200, 200)):
            with self.subTest(pair=pair):
                self.assertEqual(self.ask(daemon, "GET", "/api/status.json", pair)[0], look)
                self.assertEqual(self.ask(daemon, "POST", "/api/reload", pair)[0], act)
        self.assertEqual(self.ask(daemon, "POST", "/api/reload", admin, reader)[0], 403, "a token decides alone")
        self.assertEqual(self.ask(daemon, "POST", "/api/reload", admin, "wrong")[0], 403)
        self.assert_stops(daemon)

    def test_required_certificates(self):
        daemon = self.https_daemon("tls://*:0", settings={"client_ca": str(self.authority.path), "require_client": True})
        self.assertEqual(self.ask(daemon, "POST", "/api/reload", self.authority.sign("anybody"))[0], 200)
        with self.assertRaises((ssl.SSLError, http.client.HTTPException, OSError)):
            self.ask(daemon, "GET", "/healthz")
        daemon.until_status("it is counted", lambda status: status["counters"]["handshakes_refused"] == 1)
        self.assert_stops(daemon)

    def test_the_certificate_is_read_again(self):
        daemon = self.https_daemon()

        def subject():
            connection = self.connection(daemon)
            connection.connect()
            return dict(pair[0] for pair in connection.sock.getpeercert()["subject"])["commonName"]

        old = self.connection(daemon)
        old.connect()
        self.assertEqual(subject(), "psd-server")
        self.authority.sign("server", "psd-server-2", "IP:127.0.0.1")
        daemon.signal(signal.SIGHUP)
        processes.until("the new certificate is shown", lambda: subject() == "psd-server-2")
        old.request("GET", "/healthz")
        self.assertEqual(old.getresponse().read(), b"ok\n", "an existing connection continues")
        self.assert_stops(daemon)

    @unittest.skipUnless(shutil.which("curl"), "curl is missing")
    def test_as_curl_does_it(self):
        token = self.write("ops.token", self.make_token("ops", "admin"))
        daemon = self.https_daemon(auth__tokens=str(self.folder / "tokens"))
        done = subprocess.run(["curl", "--silent", "--show-error", "--fail", "--cacert", str(self.authority.path), "-H",
                               f"Authorization: Bearer {token.read_text()}", f"{daemon.page}/api/status.json"],
                              capture_output=True, text=True, timeout=processes.WAIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["state"], "waiting for a model")
        self.assert_stops(daemon)


if __name__ == "__main__":
    processes.main()
