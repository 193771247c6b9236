"""Published versions of a model that moves from one number of daemons to another: one sequence, with the same bytes."""

import contextlib
import os
import random
import threading

import numpy as np
import processes
from test_python_standby_versions import MODEL, Reading, VersionsTest

import psd

PATIENT = {"on_event": lambda *_: None, "retry_timeout": processes.WAIT_S}


def described(versions):
    return {each.number: (each.history, each.step, each.created, each.moment) for each in versions}


class MovedParts(VersionsTest):
    def part(self, name, index, count, kind="log", **settings):
        if kind != "none":
            settings["durability"] = {"type": kind, "path": str(self.folder / f"{name}{index}")}
        addresses = [self.unix_address(f"{name}{each}.sock") for each in range(count)]
        if count > 1:
            settings.update(daemons=addresses, index=index)
        settings.setdefault("publish", {"every_updates": 1, "keep": 4})
        return self.daemon(listen=(addresses[index],), policy="sync", policy__round_timeout_ms=600_000,
                           optimizer='{"type":"sgd","lr":1.0}', **settings)

    def parts(self, name, count, kind="log", **settings):
        return [self.part(name, index, count, kind, **settings) for index in range(count)]

    def move(self, old, new):
        return self.start_psd("move", "--server", old[0].address, "--to", new[0].address)

    def assert_moves(self, old, new):
        move = self.move(old, new)
        self.assertEqual(move.wait(), 0, move.err)
        self.assertRegex(move.out, r"copied +\d+ published version")
        for daemon in old:
            self.assert_ends(daemon)

    def exported(self, daemons, number):
        file = self.folder / "exported.safetensors"
        self.psd("export", "--server", daemons[-1].address, "--published", number, "--to", file)
        return file.read_bytes()

    def follower(self, address):
        follower = psd.Follower(address, **PATIENT)
        self.addCleanup(follower.close)
        return follower

    def pinned(self, follower, pins):
        """Pins a version, of which others may take the place at once."""
        while True:
            number = follower.wait(timeout=processes.WAIT_S)
            with contextlib.suppress(psd.NotReady):
                pins.enter_context(follower.pin())
                return number

    def across(self, counts, kind):
        daemons = self.parts(f"{kind}0-", counts[0], kind)
        self.training(daemons[0].address)
        reading, holder = Reading(self, daemons[-1].address), self.follower(daemons[0].address)
        follow = self.start_psd("follow", "--server", daemons[-1].address, "--into", self.folder / f"{kind}-model")

        def followed():
            return [int(line.split()[1][:-1]) for line in follow.out.splitlines() if line.startswith("version ")]

        with contextlib.ExitStack() as pins:
            held = self.pinned(holder, pins)
            before, described_before = self.exported(daemons, held), described(holder.versions())[held]
            for move, count in enumerate(counts[1:], 1):
                reading.until_more(3)
                old, daemons = daemons, self.parts(f"{kind}{move}-", count, kind)
                self.assert_moves(old, daemons)
                reading.until_more(3)
                newest = reading.seen[-1][1]
                processes.until("psd follow continues", lambda least=newest: max(followed(), default=0) >= least)
                self.assertEqual(described(holder.versions())[held], described_before)
                self.assertEqual(self.exported(daemons, held), before)
            later = self.follower(daemons[-1].address)
            later.fetch(held)
            self.assertEqual(later.info.history, reading.seen[0][0])
        self.check(reading)
        numbers = followed()
        self.assertEqual(numbers, sorted(set(numbers)))
        self.assertNotIn("has lost", follow.err)
        follow.kill()
        reading.finish()

    def test_one_sequence_of_any_number_of_daemons(self):
        self.across((1, 2, 3, 1), "log")

    def test_one_sequence_in_memory(self):
        self.across((2, 2, 1, 2), "none")

    def test_daemons_over_the_old_folders_name_the_new_ones(self):
        old = self.parts("a", 2)
        self.training(old[0].address)
        seen = self.follower(old[0].address)
        number = seen.wait(timeout=processes.WAIT_S)
        new = self.parts("b", 3)
        self.assert_moves(old, new)
        again = self.parts("a", 2)
        later = self.follower(again[1].address)
        self.assertGreaterEqual(later.wait(timeout=processes.WAIT_S), number)
        self.assertEqual(later.info.history, seen.info.history)
        refused = self.refused("export", "--server", again[0].address, "--published", 0, "--to", self.folder / "none")
        self.assertIn(f"the model has moved to {new[0].address} {new[1].address} {new[2].address}", refused)
        self.psd("follow", "--server", again[0].address, "--into", self.folder / "model", "--once")

    def test_numbers_above_those_of_rounds(self):
        # psd publish gives one daemon's versions numbers of their own, which several daemons continue.
        old = self.parts("a", 1, publish={"keep": 8})
        client = psd.Client(old[0].address)
        client.join(MODEL, MODEL.zeros(), 0, 2)
        values, down = MODEL.zeros(), -np.ones(MODEL.size, np.float32)
        client.pull(values)
        client.push(down)
        for _ in range(6):
            self.psd("publish", "--server", old[0].address)
        client.leave()
        client.close()
        reading = Reading(self, old[0].address)
        reading.until_more(1)
        new = self.parts("b", 2)
        self.assert_moves(old, new)
        self.training(new[0].address, rank=1)
        reading.until_more(3)
        self.check(reading)
        follower = self.follower(new[0].address)
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), follower.info.step + 5)  # 6 versions after one round
        reading.finish()

    def test_a_damaged_version_stays_behind(self):
        old = self.parts("a", 2, publish={"every_updates": 1, "keep": 8})
        client = psd.Client(old[0].address)
        client.join(MODEL, MODEL.zeros(), 0, 1)
        values, down = MODEL.zeros(), -np.ones(MODEL.size, np.float32)
        for _ in range(4):
            client.pull(values)
            client.push(down)
        follower = self.follower(old[0].address)
        follower.wait(at_least=4, timeout=processes.WAIT_S)
        path = self.folder / "a1" / "versions" / "version-0000000002.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        client.leave()
        client.close()
        self.assert_moves(old, self.parts("b", 3, publish={"every_updates": 1, "keep": 8}))
        self.assertIn("version 2 does not move with the model", old[1].err)
        self.assertEqual([version.number for version in follower.versions()], [1, 3, 4])
        self.assertEqual(follower.fetch(3), 3)

    def test_a_replica_says_why_it_does_not_follow(self):
        old = self.parts("a", 1)
        self.training(old[0].address)
        listen = self.unix_address("replica.sock")
        replica = processes.Daemon(self.folder, self._name("psd"), ["--listen", listen, "--replica-of", old[0].address])
        self.processes.append(replica)
        self.follower(listen).wait(timeout=processes.WAIT_S)
        new = self.parts("b", 2)
        self.assert_moves(old, new)
        why = f"the model has moved from {old[0].address} to several daemons ({new[0].address} {new[1].address})"
        replica.until_status("it says why", lambda status: why in (status["publish"].get("error") or ""))
        self.assertIn(why, replica.err)

    def has_decided(self, lead):
        """Whether the outcome of a move is final once its command has ended: a move that did not begin cannot be committed."""
        return not lead.runs() or "the model stays here" in lead.err or "is about to move" not in lead.err

    def killed_during_a_move(self, whom, counts):
        name = f"{whom}{counts[0]}"
        old, new = self.parts(f"{name}a", counts[0]), self.parts(f"{name}b", counts[1])
        self.training(old[0].address)
        reading = Reading(self, old[0].address)
        reading.until_more(2)
        move = self.move(old, new)
        processes.until("the move has begun", lambda: "a move of the model to here" in new[-1].err or not move.runs())
        threading.Event().wait(self.chance.uniform(0, 0.8))
        {"target": new[-1], "command": move, "lead": old[0], "source": old[-1]}[whom].kill()
        move.wait()
        if whom != "lead":
            processes.until("the lead has decided", lambda: self.has_decided(old[0]))
        moved = (self.folder / f"{name}a0" / "moved.json").exists()
        print(f"{whom} of {counts} killed: {'the new daemons serve' if moved else 'the old ones continue'}")
        if whom == "target":
            new[-1] = self.part(f"{name}b", counts[1] - 1, counts[1])
        if whom == "lead":
            old[0] = self.part(f"{name}a", 0, counts[0])
        if whom == "source" and not moved:
            old[-1] = self.part(f"{name}a", counts[0] - 1, counts[0])
        reading.until_more(3)
        if not moved:
            if whom != "lead":  # which does not know the move any more
                for index, daemon in enumerate(new):
                    daemon.until_status("it is free", lambda status: status["state"] == "waiting for a model")
                    processes.until("no version is left", lambda place=f"{name}b{index}": not self.files(place))
            processes.until("the model moves", lambda: self.move(old, new).wait() == 0)  # once the trainer is back
            reading.until_more(3)
        self.check(reading)
        reading.finish()

    def test_participants_that_die(self):
        self.chance = random.Random(int(os.environ.get("MOVED_VERSIONS_SEED", "1")))
        for whom, counts in (("target", (2, 3)), ("command", (2, 3)), ("lead", (2, 3)), ("source", (2, 3)),
                             ("target", (1, 1)), ("command", (1, 1)), ("lead", (1, 1))):
            with self.subTest(whom, counts=counts):
                self.killed_during_a_move(whom, counts)

    def test_what_cannot_move_is_refused_by_a_line(self):
        old = self.parts("a", 1)
        self.training(old[0].address)
        reading = Reading(self, old[0].address)
        reading.until_more(1)
        refused = (("publish is absent here, and the previous daemon publishes versions", self.parts("b", 2, publish=None)),
                   ("as parts: raise it", self.parts("c", 2, limits={"version_bytes": 1 << 20})))
        for why, new in refused:
            move = self.move(old, new)
            self.assertNotEqual(move.wait(), 0)
            self.assertIn(why, move.err)
        self.assertNotIn("is about to move", old[0].err)
        reading.until_more(2)
        self.check(reading)


if __name__ == "__main__":
    processes.main()
