"""Notifications to a service manager over NOTIFY_SOCKET (sd_notify(3)), and the unit files that request them."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import certificates
import processes

FOLDER = processes.REPO / "configs/systemd"
UNITS = {"psd.service": "psd.service", "psd@.service": "psd@a.service"}  # and the name by which it is started


class Manager:
    """The socket of a service manager. messages: the received messages, each a list of its lines."""

    def __init__(self, name):
        self.name = str(name)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + self.name[1:] if self.name.startswith("@") else self.name)
        self.socket.setblocking(False)
        self.messages = []

    def read(self):
        while True:
            try:
                self.messages.append(self.socket.recv(65536).decode().split("\n"))
            except BlockingIOError:
                return self.messages

    def wait(self, line, times=1):
        """Waits until that line was received `times` times; returns the index of the last message with it."""

        def look():
            found = [place for place, lines in enumerate(self.read()) if line in lines]
            return len(found) >= times and found[times - 1] + 1

        return processes.until(f"{line!r}, {times} time(s), among {self.messages}", look) - 1

    def lines(self):
        return [line for lines in self.read() for line in lines]


class ServiceManager(processes.ProcessTest):
    def manager(self, name=None):
        manager = Manager(name or self.folder / "notify")
        self.addCleanup(manager.socket.close)
        return manager

    def told(self, manager, *, environment=(), **settings):
        return self.daemon(environment={"NOTIFY_SOCKET": manager.name, **dict(environment)}, **settings)

    def test_a_life_over_a_path_and_an_abstract_name(self):
        for name in (self.folder / "notify", f"@psd-test-{os.getpid()}"):
            with self.subTest(name=name):
                manager = self.manager(name)
                saved = {"type": "checkpoint", "path": str(self.folder / f"saved-{len(self.processes)}")}
                daemon = self.told(manager, durability=saved, policy="locked")
                place = manager.wait("READY=1")
                self.assertIn("STATUS=waiting for a model", manager.messages[place])
                self.assertIn("STATUS=starting", manager.lines()[:place + 1])
                if processes.TRAINER:
                    self.assert_ends(self.train(daemon.address, steps=2))
                    manager.wait("STATUS=serving mlp")
                self.assertNotIn("STOPPING=1", manager.lines())
                before = manager.lines().count("EXTEND_TIMEOUT_USEC=30000000")
                self.assert_stops(daemon)
                stopping, saving = manager.wait("STOPPING=1"), manager.wait("STATUS=saving")
                self.assertLess(stopping, saving)
                self.assertGreater(manager.lines().count("EXTEND_TIMEOUT_USEC=30000000"), before)
                self.assertFalse([line for line in manager.lines() if line.startswith("WATCHDOG")], "it was not requested")
                self.assertNotIn("warn", daemon.err)

    def test_a_reload(self):
        manager = self.manager()
        daemon = self.told(manager)
        manager.wait("READY=1")
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        daemon.signal(signal.SIGHUP)
        place = manager.wait("RELOADING=1")
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        told = next(int(line.partition("=")[2]) for line in manager.messages[place] if line.startswith("MONOTONIC_USEC="))
        self.assertTrue(before <= told <= after, (before, told, after))
        self.assertGreater(manager.wait("READY=1", times=2), place)
        self.assert_stops(daemon)

    def test_the_unit_reloads_by_what_the_daemon_takes_and_watches_over_it(self):
        reloads = set()
        for unit in UNITS:
            text = (FOLDER / unit).read_text(encoding="utf-8")
            self.assertIn("\nType=notify\n", text)
            reloads.add(re.search(r"^ExecReload=(.+)$", text, re.MULTILINE)[1])
            self.assertGreaterEqual(int(re.search(r"^WatchdogSec=(\d+)$", text, re.MULTILINE)[1]), 10)  # a machine may be suspended for a while
        [reload] = reloads
        manager = self.manager()
        daemon = self.told(manager)
        manager.wait("READY=1")
        subprocess.run(reload.replace("$MAINPID", str(daemon.pid)).split(), check=True, timeout=60)
        manager.wait("RELOADING=1")
        manager.wait("READY=1", times=2)
        self.assert_stops(daemon)

    def test_signs_of_life_while_it_lives(self):
        manager = self.manager()
        daemon = self.told(manager, environment={"WATCHDOG_USEC": "100000"})
        manager.wait("WATCHDOG=1", times=5)
        self.assert_stops(daemon)

    def test_a_watchdog_of_another_process(self):
        manager = self.manager()
        daemon = self.told(manager, environment={"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"})
        manager.wait("READY=1")
        self.assert_stops(daemon)
        self.assertNotIn("WATCHDOG=1", manager.lines())

    def test_what_is_wrong_is_one_warning(self):
        long = "/" + 200 * "a"
        gone = f"{self.folder}/none"
        for environment, words in (({"NOTIFY_SOCKET": "notify"}, "NOTIFY_SOCKET: 'notify' is neither a path nor '@' with a name"),
                                   ({"NOTIFY_SOCKET": long}, "is longer than 107 bytes"),
                                   ({"NOTIFY_SOCKET": gone}, "none' cannot be connected to: No such file"),
                                   ({"WATCHDOG_USEC": "soon"}, "WATCHDOG_USEC: 'soon' is not a whole number from 1"),
                                   ({"WATCHDOG_USEC": "9", "WATCHDOG_PID": "me"}, "WATCHDOG_PID: 'me' is not")):
            with self.subTest(environment=environment):
                manager = self.manager(f"@psd-test-{os.getpid()}-{len(self.processes)}")
                daemon = self.told(manager, environment=environment)
                self.assert_serves(daemon)
                self.assert_stops(daemon)
                warnings = [line for line in daemon.err.splitlines() if " warn" in line]
                self.assertEqual(len(warnings), 1, daemon.err)
                self.assertIn(words, warnings[0])

    def test_a_manager_that_goes_away_is_one_warning(self):
        manager = self.manager()
        daemon = self.told(manager, environment={"WATCHDOG_USEC": "20000"})
        manager.wait("WATCHDOG=1")
        manager.socket.close()
        processes.until("a warning", lambda: "cannot notify the service manager any more: NOTIFY_SOCKET:" in daemon.err)
        self.assert_serves(daemon)
        self.assert_stops(daemon)
        self.assertEqual(daemon.err.count("the service manager"), 1)


class UnitFiles(processes.ProcessTest):
    def setUp(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze is missing")

    def analyze(self, *words):
        return subprocess.run(["systemd-analyze", *map(str, words)], text=True, capture_output=True, timeout=120, check=False)

    def units(self):
        """Each unit with the program of this build instead of the installed one, and the name by which it is started."""
        for file, started in UNITS.items():
            text = (FOLDER / file).read_text(encoding="utf-8")
            self.assertIn("ExecStart=/usr/bin/psd ", text)
            yield self.write(file, text.replace("/usr/bin/psd ", f"{processes.PSD} ")), self.folder / started

    def test_systemd_finds_nothing_wrong(self):
        for file, started in self.units():
            done = self.analyze("verify", "--man=no", "--generators=no", started)
            said = [line for line in (done.stdout + done.stderr).splitlines() if file.name in line or started.name in line]
            self.assertEqual((done.returncode, said), (0, []), done.stderr)
            broken = self.write(f"broken{file.name}", file.read_text(encoding="utf-8").replace("Type=notify", "Typ=notify"))
            self.assertIn("Typ", self.analyze("verify", "--man=no", "--generators=no", broken.parent / f"broken{started.name}").stderr)

    def test_they_are_hardened(self):
        for file, _ in self.units():
            done = self.analyze("security", "--offline=true", "--threshold=25", file)
            self.assertEqual(done.returncode, 0, done.stdout[-500:])
            self.assertRegex(done.stdout, r"Overall exposure level for psd\S*.service: [0-2]\.[0-9]")

    def test_the_template_is_the_unit_but_for_its_places(self):
        unit, template = ((FOLDER / file).read_text(encoding="utf-8") for file in UNITS)
        lines = [line for line in template.splitlines() if not line.startswith("# ") or line in unit]
        different = [(mine, line) for mine, line in zip(unit.splitlines(), lines, strict=True) if mine != line]
        self.assertEqual([line for _, line in different], [
            "Description=psd parameter server, %i", "ExecStart=/usr/bin/psd --config /etc/psd/%i.json", "LoadCredential=tokens:psd-%i.tokens",
            "LoadCredential=certificate:psd-%i.crt", "LoadCredential=key:psd-%i.key", "StateDirectory=psd-%i", "RuntimeDirectory=psd-%i"])

    def test_a_daemon_takes_the_credentials_that_its_unit_passes_on(self):
        text = (FOLDER / "psd.service").read_text(encoding="utf-8")
        comment = " ".join(re.findall(r"^# (.*)$", text, re.MULTILINE))
        named = re.search(r'("auth": \{.*?\}) and ("tls": \{.*?\})', comment)
        config = json.loads("{" + ", ".join(named.groups()) + "}")
        paths = [config["auth"]["tokens"], *config["tls"].values()]
        self.assertEqual([f"/run/credentials/%n/{name}" for name in re.findall(r"^LoadCredential=(\w+):", text, re.MULTILINE)], paths)
        authority = certificates.Authority(self.folder, "ca")
        for source, name in zip(authority.sign("server", "psd", "IP:127.0.0.1"), ("certificate", "key"), strict=True):
            shutil.copy(source, self.folder / name)
        token = self.make_token("ops", "admin")
        (self.folder / "tokens").chmod(0o440)  # so does systemd's ACL appear
        text = json.dumps(config).replace("/run/credentials/%n", str(self.folder))
        arguments = ["--config", self.write("psd.json", text), "--listen", "tls://127.0.0.1:0"]
        self.assert_fails(self.start_psd(*arguments), "chmod 600")
        daemon = processes.Daemon(self.folder, self._name("psd"), arguments, environment={"CREDENTIALS_DIRECTORY": str(self.folder)})
        self.processes.append(daemon)
        self.assert_ends(self.start_psd("status", "--server", daemon.address, "--tls-ca", authority.path,
                                        environment={"PSD_TOKEN": token}))
        self.assert_stops(daemon)

    def test_their_configurations_are_right(self):
        for file, configuration, named, saved in (("psd.service", "psd.json", "/etc/psd/psd.json", "/var/lib/psd/saved"),
                                                  ("psd@.service", "a.json", "/etc/psd/%i.json", "/var/lib/psd-a/saved")):
            with self.subTest(file):
                self.assertEqual(re.search(r"--config (\S+)", (FOLDER / file).read_text(encoding="utf-8"))[1], named)
                check = self.start_psd("check", FOLDER / configuration)
                self.assert_ends(check)
                self.assertEqual(json.loads(check.out)["durability"]["path"], saved)


if __name__ == "__main__":
    processes.main()
