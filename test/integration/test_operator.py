"""psd status, psd reload and psd stop: which daemon they ask, how long they wait, and what the status holds."""

import json
import re
import signal

import processes

PROTOCOL = processes.REPO / "docs" / "protocol.md"


def keys(value, path=()):
    """The path of every key in a document, without the places in lists."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield path + (key,)
            yield from keys(child, path + (key,))
    elif isinstance(value, list):
        for child in value:
            yield from keys(child, path)


def documented():
    """Paths in the table of the status document: "`a.b`, `.c`" is a.b and a.c, and [] says that it is a list."""
    section = PROTOCOL.read_text(encoding="utf-8").partition("## The status document")[2]
    for line in section.splitlines():
        path = ()
        for name in re.findall(r"`([a-z_.\[\]]+)`", line.split("|")[1] if line.startswith("| `") else ""):
            names = tuple(name.replace("[]", "").lstrip(".").split("."))
            path = path[:-1] + names if name.startswith(".") else names
            yield from (path[:length + 1] for length in range(len(path)))


class Operator(processes.ProcessTest):
    def durability(self):
        return json.dumps({"type": "log", "path": str(self.folder / "saved"), "every_updates": 1})

    def test_every_key_of_the_status_is_on_the_page(self):
        saving = self.daemon(policy="locked", durability=self.durability())
        self.endless_trainer(saving)
        status = saving.until_status("a checkpoint", lambda status: status["durability"]["last_checkpoint"])
        waited = self.daemon(policy="sync", policy__start_trainers=2, world_size=2)
        self.train(waited.address, world_size=2, more=("--data-plan", "dynamic"))
        waiting = waited.until_status("a trainer waits", lambda status: status["waiting"] and status["waiting"][0]["ranks"])
        found = set(keys(status)) | set(keys(waiting))
        self.assertGreater(len(found), 60)
        self.assertEqual(found - set(documented()), set())

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
        self.assert_stops(daemon)

    def test_waits_no_longer_than_it_is_told(self):
        daemon = self.daemon()
        daemon.signal(signal.SIGSTOP)
        for command in ("status", "reload", "stop"):
            process = self.start_psd(command, "--server", daemon.address, "--timeout", "0.2")
            complaint = self.assert_fails(process, daemon.address, "no answer within 0.2 s")
            self.assertNotIn("goes on", complaint, "it was not even asked")
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

    def test_a_stop_that_takes_long_goes_on(self):
        daemon = self.daemon(limits__drain_ms=86_400_000)
        trainer = self.endless_trainer(daemon)
        trainer.signal(signal.SIGSTOP)  # so the daemon waits for it to hang up
        process = self.start_psd("stop", "--server", daemon.address, "--timeout", "1")
        self.assert_fails(process, "no answer within 1 s; the daemon goes on with it, see its log")
        self.assertTrue(daemon.runs())
        trainer.kill()
        self.assert_ends(daemon)


if __name__ == "__main__":
    processes.main()
