"""psd status, psd reload and psd stop: the daemon that they address, their timeouts, and the table."""

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import termios

import processes


class Operator(processes.ProcessTest):
    def durability(self):
        return json.dumps({"type": "log", "path": str(self.folder / "saved"), "every_updates": 1})

    def test_the_table_shows_what_the_status_holds(self):
        saving = self.daemon(policy="locked", durability=self.durability())
        self.endless_trainer(saving)
        saving.until_status("a checkpoint", lambda status: status["durability"]["last_checkpoint"]
                            and status["histograms"]["apply_seconds"]["count"] > 0)
        waited = self.daemon(policy="sync", policy__start_trainers=2, world_size=2)
        self.train(waited.address, world_size=2, more=("--data-plan", "dynamic"))
        waited.until_status("a trainer waits", lambda status: status["waiting"] and status["waiting"][0]["ranks"])
        for daemon, lines in ((saving, ("psd .*  serving  pid .* MiB resident", "model      mlp, .* parameters in .* tensors",
                                        "durability log in .*, last checkpoint .* ago .*, pushes paused for .*s\\)",
                                        "staleness  median [0-9]+, 99 % ≤ [0-9]+, max [0-9]+", "apply      median .*s, 99 % ≤ .*s, max .*s",
                                        "log sync   median .*s, 99 % ≤ .*s, max .*s")),
                              (waited, ("trainers   1 of 2 joined, 0 lost",
                                        "waiting    rank 0 waits in round 0 \\(sync\\) for 1 more trainer to join"))):
            shown = self.start_psd("status", "--server", daemon.address)
            self.assert_ends(shown)
            for line in lines:
                self.assertRegex(shown.out, f"(?m)^{line}$")

    def test_of_several_addresses_the_first_that_answers(self):
        daemon = self.daemon()
        servers = f"{self.unix_address('none.sock')},{daemon.address}"
        for arguments, environment in ((("status",), {"PSD_SERVER": servers}), (("status", "--server", servers), {})):
            with self.subTest(arguments=arguments):
                process = self.start_psd(*arguments, environment=environment)
                self.assert_ends(process)
                self.assertIn(daemon.address, process.out)
        neither = self.start_psd("stop", "--server", f"{self.unix_address('none.sock')},{self.unix_address('nor.sock')}")
        self.assert_fails(neither, "none.sock", "nor.sock")
        self.assertEqual(neither.wait(), 1, "no daemon is there")
        self.assert_stops(daemon)

    def test_waits_no_longer_than_its_timeout(self):
        daemon = self.daemon()
        daemon.signal(signal.SIGSTOP)
        for command in ("status", "reload", "stop"):
            process = self.start_psd(command, "--server", daemon.address, "--timeout", "0.2")
            complaint = self.assert_fails(process, daemon.address, "no answer within 200 ms")
            self.assertNotIn("continues", complaint, "it got no request")
            self.assertEqual(process.wait(), 3, "it is there and stands still")
        follows = self.start_psd("events", "--follow", "--server", daemon.address, "--timeout", 0.2)
        self.assert_fails(follows, daemon.address, "no answer within 200 ms")
        daemon.signal(signal.SIGCONT)
        self.assert_stops(daemon)

    def test_numbers_that_cannot_be_right(self):
        for command, flag, text, right in (("stop", "--timeout", "soon", "a number of seconds above 0 and up to 86400"),
                                           ("status", "--timeout", "0", "a number of seconds above 0 and up to 86400"),
                                           ("replay", "--until", "-3", "a whole number from 0 to"),
                                           ("replay", "--until", "abc", "a whole number from 0 to")):
            with self.subTest(command=command, text=text):
                process = self.start_psd(command, *([self.folder] if command == "replay" else []), flag, text)
                self.assert_fails(process, f"{flag}: '{text}' is not {right}")
                self.assertEqual(process.wait(), 2)

    def test_a_stop_tells_what_could_not_be_saved(self):
        model = self.folder / "away" / "model.safetensors"
        model.parent.mkdir()
        daemon = self.daemon(save=str(model))
        self.assert_ends(self.train(daemon.address, steps=2))
        model.parent.rmdir()
        process = self.start_psd("stop", "--server", daemon.address)
        self.assert_fails(process, f"{daemon.address} has stopped; could not save the model: '{model}'")
        self.assertEqual(process.wait(), 1)
        self.assert_fails(daemon, f"could not save the model: '{model}'")
        whole = self.start_psd("stop", "--server", self.daemon().address)
        self.assert_ends(whole)
        self.assertIn("has stopped", whole.out)

    def test_a_stop_that_would_discard_the_model_is_refused(self):
        daemon = self.daemon()
        self.assert_ends(self.train(daemon.address, steps=2))
        stop = self.start_psd("stop", "--server", daemon.address)
        self.assert_fails(stop, "stopping would discard the model: `durability` is none and `save` is empty",
                          f"psd export --server {daemon.address} FILE", "--discard")
        self.assertEqual(stop.wait(), 1)
        self.assertTrue(daemon.runs())
        self.assert_ends(self.start_psd("stop", "--discard", "--server", daemon.address))
        self.assert_ends(daemon)
        saves = self.daemon(save=str(self.folder / "model.safetensors"))
        self.assert_ends(self.train(saves.address, steps=2))
        self.assert_ends(self.start_psd("stop", "--server", saves.address))
        self.assert_ends(saves)

    def test_one_daemon_of_several_refuses_for_all(self):
        addresses = [self.unix_address(f"{index}.sock") for index in range(2)]
        daemons = [self.daemon("--index", str(index), listen=(addresses[index],), policy="locked", daemons=addresses,
                               **({"save": str(self.folder / "part.safetensors")} if index == 1 else {})) for index in range(2)]
        self.assert_ends(self.train(addresses[0], steps=2))
        self.assert_fails(self.start_psd("stop", "--server", addresses[1]), f"{addresses[0]}: stopping would discard the model")
        self.assertTrue(all(daemon.runs() for daemon in daemons))
        self.assert_ends(self.start_psd("stop", "--discard", "--server", addresses[1]))
        for daemon in daemons:
            self.assert_ends(daemon)

    def test_nothing_listens_or_http_is_spoken_there(self):
        nowhere = self.unix_address("nowhere.sock")
        self.assert_fails(self.start_psd("status", "--server", nowhere),
                          "is psd running? 'psd --config FILE' starts it, and --server names another address")
        daemon = self.daemon(http='{"listen":["tcp://127.0.0.1:0"]}')
        page = re.search(r"http://127\.0\.0\.1:(\d+)", daemon.err)[1]
        self.assert_fails(self.start_psd("status", "--server", f"tcp://127.0.0.1:{page}", "--timeout", "0.5"), "this is an HTTP port; use an address")

    def test_a_dry_run_of_a_reload(self):
        path = self.write("psd.json", json.dumps({"listen": [self.unix_address()], "optimizer": {"lr": 0.25}}))
        daemon = processes.Daemon(self.folder, "dry", ["--config", str(path)])
        self.processes.append(daemon)

        def dry(**keys):
            self.write("psd.json", json.dumps({"listen": [self.unix_address()], **keys}))
            return self.start_psd("reload", "--dry-run", "--server", daemon.address)

        would = dry(optimizer={"lr": 0.5})
        self.assert_ends(would)
        self.assertIn("optimizer.lr: 0.25 -> 0.5", would.out)
        self.assert_fails(dry(optimizer={"lr": 0.5}, shards=3, threads=63), "shards: cannot change while the daemon runs", "threads: cannot change")
        self.assertIn("lr=0.25", daemon.status()["optimizer"])

    def on_terminal(self, *arguments, rows=24, columns=80, until=b"", **variables):
        """What psd shows on a terminal of that size until it ends, by SIGTERM once it shows `until`."""
        ours, theirs = os.openpty()
        with open(ours, "rb", closefd=True) as shown:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            process = subprocess.Popen([processes.PSD, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
                                       env={**os.environ, "TERM": "xterm", **variables})
            os.close(theirs)
            text = b""
            try:
                while more := os.read(shown.fileno(), 4096):
                    text += more
                    if until and until in text:
                        process.terminate()
            except OSError:  # the process has closed the terminal
                pass
            process.wait(processes.WAIT_S)
        return text.decode()

    def test_top_fits_the_terminal(self):
        daemon = self.daemon()
        for rank in range(4):
            self.endless_trainer(daemon, rank, 4)
        for columns in (80, 30):
            shown = self.on_terminal("top", "--count", 1, "--server", daemon.address, rows=8, columns=columns)
            lines = re.sub(r"\x1b\[[0-9;]*[A-Z]", "", shown).splitlines()
            self.assertEqual(len(lines), 7)
            self.assertLessEqual(max(map(len, lines)), columns)
            self.assertIn("psd 0.", lines[0])
            self.assertRegex(lines[-1], r"^  \d more trainers$")
        self.assert_fails(self.start_psd("top", "--sort", "name", "--server", daemon.address), "--sort: 'name' is not a key; expected one of rank, step")

    def test_colors_of_the_log(self):
        for variables, colored in (({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)):
            shown = self.on_terminal("--listen", "tcp://127.0.0.1:0", until=b"tcp://127.0.0.1:", **variables)
            self.assertEqual("\x1b[3" in shown, colored, shown)

    def test_the_doctor(self):
        daemon = self.daemon()
        sick = self.start_psd("doctor", "--listen", daemon.address, "--json")
        self.assertEqual(sick.wait(), 1)
        checks = {check["check"]: check for check in json.loads(sick.out)["checks"]}
        self.assertEqual(checks[f"listen {daemon.address}"]["outcome"], "fail")
        self.assertLessEqual({"memory", "descriptors", "clock", "huge pages", "shared memory"}, set(checks))
        durability = json.dumps({"type": "checkpoint", "path": str(self.folder / "saved")})
        well = self.start_psd("doctor", "--listen", self.unix_address("other.sock"), "--set", f"durability={durability}")
        well.wait()
        self.assertRegex(well.out, r"(ok|warn) +durability\.path: .*/s with sync, .* free of ")
        self.assertFalse((self.folder / "other.sock").exists())
        running = self.start_psd("doctor", "--server", daemon.address)
        self.assert_ends(running)
        self.assertIn("warn  durability: none", running.out)
        self.assertRegex(running.out, r"descriptors: \d+ of \d+ open")
        self.assert_fails(self.start_psd("doctor", "--set", "shards=2", "--server", daemon.address), "--set: cannot be combined with --server")
        for flag, value in (("--timeout", 5), ("--token-file", "x"), ("--tls-ca", "x")):
            self.assert_fails(self.start_psd("doctor", flag, value), f"{flag} requires --server")

    def test_the_doctor_takes_the_steps_of_a_start(self):
        daemon = self.daemon(durability=self.durability())
        tokens = self.write("tokens", "")
        tokens.chmod(0o644)
        sick = self.start_psd("doctor", "--listen", self.unix_address("other.sock"), "--set", f"durability={self.durability()}",
                              "--set", f"auth.tokens={tokens}", "--json")
        self.assertEqual(sick.wait(), 1)
        checks = {check["check"]: check for check in json.loads(sick.out)["checks"]}
        self.assertIn("accessible to group or others", checks["auth"]["text"])
        self.assertIn("is in use by another daemon", checks["lock"]["text"])
        daemon.kill()
        tokens.chmod(0o600)
        self.make_token("ops", "admin")
        well = self.start_psd("doctor", "--listen", self.unix_address("other.sock"), "--set", f"durability={self.durability()}",
                              "--set", f"auth.tokens={tokens}", "--json")
        well.wait()
        checks = {check["check"]: check["outcome"] for check in json.loads(well.out)["checks"]}
        self.assertEqual((checks["auth"], checks["lock"]), ("ok", "ok"))

    def test_the_doctor_of_a_daemon_writes_nothing(self):
        daemon = self.daemon(durability=self.durability())
        self.endless_trainer(daemon)
        daemon.until_status("the disks are measured", lambda status: status["disks"])
        running = self.start_psd("doctor", "--server", daemon.address)
        running.wait()
        self.assertRegex(running.out, rf"(ok|warn)    ?disk of {self.folder / 'saved'}: .* free of ")
        self.assertNotIn("with sync", running.out)

    def test_a_slow_stop_continues(self):
        daemon = self.daemon(limits__drain_ms=86_400_000)
        trainer = self.endless_trainer(daemon)
        trainer.signal(signal.SIGSTOP)  # so the daemon waits until it disconnects
        process = self.start_psd("stop", "--discard", "--server", daemon.address, "--timeout", "1")
        self.assert_fails(process, "no answer within 1.0 s; the daemon continues with it, see its log")
        self.assertTrue(daemon.runs())
        trainer.kill()
        self.assert_ends(daemon)


if __name__ == "__main__":
    processes.main()
