"""psd status, psd reload and psd stop: the daemon that they address, their timeouts, and the table."""

import json
import signal

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

    def test_a_slow_stop_continues(self):
        daemon = self.daemon(limits__drain_ms=86_400_000)
        trainer = self.endless_trainer(daemon)
        trainer.signal(signal.SIGSTOP)  # so the daemon waits until it disconnects
        process = self.start_psd("stop", "--server", daemon.address, "--timeout", "1")
        self.assert_fails(process, "no answer within 1.0 s; the daemon continues with it, see its log")
        self.assertTrue(daemon.runs())
        trainer.kill()
        self.assert_ends(daemon)


if __name__ == "__main__":
    processes.main()
