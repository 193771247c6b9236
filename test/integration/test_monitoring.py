"""The files in configs/monitoring match the metrics that a daemon exposes; and the events for TensorBoard are readable.

Prometheus' own tools check the files if they are installed (Debian: prometheus).
"""

import json
import pathlib
import re
import shutil
import struct
import subprocess
import unittest
import urllib.request

import certificates
from processes import REPO, ProcessTest, main, quietly, until

MONITORING = REPO / "configs" / "monitoring"
RULES = (MONITORING / "alerts.yml").read_text()
RUNBOOKS = REPO / "docs/guides/monitoring.md"
ALERTS = re.findall(r"- alert: (\w+)", RULES)
PROMTOOL = shutil.which("promtool")
# Panels without data in an ordinary training.
WITHOUT_SAMPLES = {"Since the last checkpoint", "Waited for", "Rows of embedding tables", "Rounds closed, per second",
                   "Left out, of the newest rounds in a row", "Free disk space", "Free disk space, of the disk", "Certificate expires in"}
NAME = re.compile(r"\b((?:psd|process)_\w+)\b")


def exposed(page):
    """The metrics of a daemon's page, histograms with the names of their series."""
    with urllib.request.urlopen(page + "/metrics", timeout=60) as answer:
        text = answer.read().decode()
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)", text, re.MULTILINE):
        names.update({f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name})
    return names


def expressions():
    """(where, expression) of all alerts and panels."""
    yield from re.findall(r"- alert: (\w+)\n\s+expr: (.+)", RULES)
    board = json.loads((MONITORING / "grafana.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield f"panel {panel['title']}", target["expr"]


class MonitoringTest(ProcessTest):
    def test_every_metric_that_is_named_is_exposed(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0")  # no trainer has joined: names must exist all the same
        page = (REPO / "docs" / "guides" / "monitoring.md").read_text()
        # Those of an executor as listed in the docs, which a test of executors compares with the exposed ones.
        known = exposed(daemon.page) | set(re.findall(r"\bpsd_executor_\w+", page))
        found = list(expressions())
        self.assertGreater(len(found), 25)
        for where, expression in found:
            names = set(NAME.findall(expression))
            self.assertTrue(names or "up{" in expression, where)
            self.assertEqual(names - known, set(), where)

    def test_panels_are_told_apart(self):
        board = json.loads((MONITORING / "grafana.json").read_text())
        ids = [panel["id"] for panel in board["panels"]]
        self.assertEqual(len(ids), len(set(ids)))

    def test_every_alert_is_documented(self):
        page = (REPO / "docs" / "guides" / "monitoring.md").read_text()
        for name in ALERTS:
            self.assertIn(f"| `{name}` |", page)

    def test_every_alert_describes_itself(self):
        found = re.findall(r"- alert: (\w+)\n(?: {8}.*\n)* {8}annotations:\n {10}summary: .+\n {10}description: .+\n"
                           r" {10}runbook_url: (.+)\n", RULES)
        self.assertEqual(found, [(name, f"docs/guides/monitoring.md#alert-{name.lower()}") for name in ALERTS])

    def test_every_alert_has_a_runbook(self):
        headings = re.findall(r"^#+ (.+)$", RUNBOOKS.read_text(encoding="utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}
        self.assertEqual({f"alert-{name.lower()}" for name in ALERTS} - anchors, set())

    def test_values_of_unlike_units_are_in_panels_of_their_own(self):
        board = json.loads((MONITORING / "grafana.json").read_text())
        for panel in board["panels"]:
            asked = [target["expr"] for target in panel["targets"]]
            self.assertEqual(len({"bytes" in expression for expression in asked}), 1, panel["title"])

    def promtool(self, *arguments):
        done = subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    @unittest.skipUnless(PROMTOOL, "promtool is missing: apt install prometheus")
    def test_rules_fire_when_they_should(self):
        self.promtool("check", "config", MONITORING / "prometheus.yml")
        for name in ("alerts.yml", "prometheus_tls.yml"):
            shutil.copy(MONITORING / name, self.folder)
        for name in ("psd-ca.pem", "psd.token"):  # the configuration names these files
            self.write(name, "")
        self.promtool("check", "config", self.folder / "prometheus_tls.yml")
        self.assertIn("SUCCESS", self.promtool("test", "rules", MONITORING / "alerts_test.yml"))

    @unittest.skipUnless(PROMTOOL, "promtool is missing: apt install prometheus")
    def test_panels_ask_what_prometheus_understands(self):
        rules = [{"record": f"panel:expression:{number}", "expr": expression.replace("$__rate_interval", "1m").replace("$instance", ".*")}
                 for number, (_, expression) in enumerate(expressions())]
        path = self.write("panels.yml", json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
        self.promtool("check", "rules", path)

    @unittest.skipUnless(shutil.which("prometheus"), "prometheus is missing")
    def test_prometheus_scrapes_a_training(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0")
        target = daemon.page.removeprefix("http://")
        self.scrape(daemon, (MONITORING / "prometheus.yml").read_text().replace("localhost:5580", target))

    @unittest.skipUnless(shutil.which("prometheus"), "prometheus is missing")
    def test_prometheus_scrapes_over_tls_with_a_token(self):
        authority = certificates.Authority(self.folder, "psd-ca")
        certificate, key = authority.sign("server", "psd-server", "IP:127.0.0.1")
        self.write("psd.token", self.make_token("prometheus", "reader"))
        tls = json.dumps({"certificate": str(certificate), "key": str(key)})
        daemon = self.daemon("--http", "tls://127.0.0.1:0", listen=(self.unix_address(),), tls=tls,
                             auth__tokens=str(self.folder / "tokens"))
        target = daemon.page.removeprefix("https://")
        self.scrape(daemon, (MONITORING / "prometheus_tls.yml").read_text().replace("node-1:5580", target))

    def scrape(self, daemon, config):
        self.endless_trainer(daemon)
        self.write("prometheus.yml", re.sub(r"(_interval:) \d+s", r"\1 1s", config))
        shutil.copy(MONITORING / "alerts.yml", self.folder)
        scraper = self.start_program("prometheus", "--config.file=prometheus.yml", "--web.listen-address=127.0.0.1:0",
                                     f"--storage.tsdb.path={self.folder / 'tsdb'}")
        port = until("Prometheus listens", lambda: self.listening_port(scraper.pid))

        def ask(path):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=60) as answer:
                return json.loads(answer.read())["data"]

        def samples(expression):
            return ask("query?query=" + urllib.request.quote(expression))["result"]

        def value(expression):
            found = samples(expression)
            return float(found[0]["value"][1]) if found else 0

        until("it is up", lambda: quietly(lambda: value('up{job="psd"}') == 1, OSError))
        until("gradients are counted", lambda: value("rate(psd_gradients_total[10s])") > 0)
        until("the loss is there", lambda: value('psd_trainer_reported{name="loss"}') > 0)
        for where, expression in expressions():  # of the dashboard's panels; those of alerts are checked below
            if "tokens_per_second" in expression:  # only for texts
                continue
            if where.startswith("panel ") and where.removeprefix("panel ") not in WITHOUT_SAMPLES:
                asked = expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
                until(f"{where}: {asked}", lambda asked=asked: samples(asked))

        def rules():
            return [rule for group in ask("rules")["groups"] for rule in group["rules"]]

        until("all rules were evaluated", lambda: all(rule["health"] != "unknown" for rule in rules()))
        self.assertEqual([(rule["name"], rule["health"], rule["state"]) for rule in rules()], [(name, "ok", "inactive") for name in ALERTS])

    def listening_port(self, pid):
        """The TCP port on which a process listens on 127.0.0.1."""
        sockets = set()
        for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(str(entry.readlink()))
            except OSError:
                pass
        for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                return int(fields[1].split(":")[1], 16)
        return None


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(message):
    """(number, value) of a protobuf message, in order."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        number = {1: "<d", 5: "<f"}.get(key & 7)
        size = struct.calcsize(number) if number else varint()
        value = message[at:at + size]
        at += size
        yield key >> 3, struct.unpack(number, value)[0] if number else value


def scalars(path):
    """{tag: {step: value}} of a file of events."""
    data, at, found = path.read_bytes(), 0, {}
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at:at + 8])
        event = data[at + 12:at + 12 + size]
        assert struct.unpack_from("<I", data, at + 12 + size)[0] == masked(event)
        at += 16 + size
        known = dict(fields(event))
        for number, value in fields(known.get(5, b"")):
            assert number == 1
            scalar = dict(fields(value))
            found.setdefault(scalar[1].decode(), {})[known.get(2, 0)] = scalar.get(2, 0.0)
    return found


class TensorboardTest(ProcessTest):
    def test_what_is_written(self):
        self.assertEqual(crc32c(b"123456789"), 0xE3069283)
        daemon = self.daemon()
        metrics = self.folder / "metrics.jsonl"
        trainer = self.train(daemon.address, steps=7, more=["--tensorboard", self.folder / "runs", "--metrics", metrics])
        self.assert_ends(trainer)
        (path,) = (self.folder / "runs" / "rank-0").iterdir()
        self.assertRegex(path.name, r"^events\.out\.tfevents\.\d+\.")
        found = scalars(path)
        self.assertEqual(set(found), {"train/loss", "train/samples_per_s", "psd/staleness", "psd/pull_s", "eval/loss", "eval/accuracy"})
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        for tag, key in (("train/loss", "loss"), ("psd/pull_s", "pull_s"), ("train/samples_per_s", "samples_per_s")):
            self.assertEqual(list(found[tag]), [1, 2, 3, 4, 5, 6, 7])
            for line in lines:
                self.assertAlmostEqual(found[tag][line["step"]] / line[key], 1, places=5)
        self.assertEqual(list(found["eval/accuracy"]), [7])
        self.assertIn(f"accuracy {100 * found['eval/accuracy'][7]:.2f} %", trainer.out)

    def test_a_folder_that_cannot_be(self):
        self.write("file", "")
        trainer = self.train("tcp://127.0.0.1:1", steps=1, more=["--tensorboard", self.folder / "file" / "runs"])
        self.assert_fails(trainer, "--tensorboard", "file/runs")
        self.assert_fails(self.train("tcp://127.0.0.1:1", steps=1, more=["--tensorboard", ""]), "--tensorboard: the file has no name")


if __name__ == "__main__":
    main()
