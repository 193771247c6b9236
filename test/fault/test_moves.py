"""The model moves to other daemons, more or fewer, while trainers work and participants of the move are killed.

The trainers' processes stay the same.
"""

import os
import random
import signal
import time
import unittest

import counting
import processes

SEED = int(os.environ.get("FAULT_MOVES_SEED", "1"))
KILLS = int(os.environ.get("FAULT_MOVES_KILLS", "2"))  # of each participant
LONGEST_S = 0.25  # after the move has started


class Moves(counting.CountingTest):
    def setUp(self):
        super().setUp()
        self.rules = {}
        self.random = random.Random(SEED)

    def several(self, count, name, kind="none", **settings):
        """Daemons that will serve a model together, or one alone."""
        addresses = [self.unix_address(f"{name}{i}.sock") for i in range(count)]
        return [self.member(addresses, name, index, kind, **settings) for index in range(count)]

    def member(self, addresses, name, index, kind="none", **settings):
        if kind != "none":
            settings["durability"] = {"type": kind, "path": str(self.folder / f"{name}-{index}")}
        if len(addresses) > 1:
            settings.update(daemons=addresses, index=index)
        return self.daemon(listen=(addresses[index],), **{"policy": "locked", "optimizer": counting.SGD, **self.rules, **settings})

    def again(self, dead, daemons, name, kind):
        """One of several(), in place of a dead one."""
        addresses = [daemon.address for daemon in daemons]
        daemons[daemons.index(dead)] = self.member(addresses, name, daemons.index(dead), kind)

    def counting(self, daemons, rank=0, world_size=1, inflight=2):
        return self.count(daemons[-1].address, rank, world_size, inflight=inflight, chunk_bytes=1 << 18)

    def move(self, old, new, *more):
        return self.start_psd("move", "--server", old[0].address, "--to", new[0].address, *more)

    def assert_moves(self, old, new, *more):
        move = self.move(old, new, *more)
        self.assert_ends(move)
        for daemon in old:
            self.assert_ends(daemon)
        return move.out

    def moves_while_training(self, kind, inflight=2, world=2):
        daemons = self.several(2, "a", kind)
        for rank in range(world):
            self.counting(daemons, rank, world, inflight)
        for name, count in (("b", 3), ("c", 1), ("d", 2)):
            self.until_each_more("before a move")
            others = self.several(count, name, kind)
            out = self.assert_moves(daemons, others)
            self.assertIn(f"{world} trainers", out)
            print(" | ".join(line for line in out.splitlines() if line.startswith(("quiesced", "moved"))))
            daemons = others
        self.until_each_more("after the moves")
        self.check_counts(daemons[0])
        return daemons

    def test_two_daemons_become_three_then_one_then_two(self):
        daemons = self.moves_while_training("log")
        addresses = [self.unix_address(f"a{index}.sock") for index in range(2)]
        before = [self.member(addresses, "a", index, "log") for index in range(2)]
        self.assertIn("start it over an empty folder", self.assert_gives_up(self.move(daemons, before)))
        for daemon in [*daemons, *before]:
            self.assert_stops(daemon)
        left = self.start_psd("repartition", self.folder / "a-0", self.folder / "a-1", "--daemons", 1, "--to", self.folder / "next")
        self.assert_fails(left, "moved.json' says that the model has moved to ")

    def test_readers_continue_at_the_new_daemons(self):
        daemons = self.several(1, "a")
        self.counting(daemons, 0, 2)
        self.counting(daemons, 1, 2)
        self.until_each_more("before the moves")
        asked, always = self.read(daemons[0].address, "asked"), self.read(daemons[0].address, "always")
        for moves, (name, count) in enumerate((("b", 2), ("c", 1)), 1):
            others = self.several(count, name)
            self.until_pulls(always, "before a move", 3)
            self.assert_moves(daemons, others)
            daemons = others
            self.until_each_more("after a move")
            self.until_pulls(always, "after a move", 3)
            answered = self.answered()
            least, _ = self.asked(asked, "after a move, of who made no call meanwhile")
            self.assertGreaterEqual(least, answered)
            for reader in (asked, always):
                where = " ".join(daemon.address for daemon in daemons)
                self.assertIn(f"the model has moved to {where}, and so has this reader, in ", reader.err)
                self.assertEqual(reader.err.count("has moved to"), moves, reader.err)
        self.check_counts(daemons[0])
        all_of_them = self.answered()
        self.assertEqual(self.asked(asked, "of what is left"), (all_of_them, all_of_them))
        for reader in (asked, always):
            reader.signal(signal.SIGTERM)
            self.assert_ends(reader)

    def test_a_reader_whose_daemon_ends_without_a_move_is_notified_at_once(self):
        [daemon] = self.several(1, "a")
        self.counting([daemon])
        self.until_each_more("before the end")
        reader = self.read(daemon.address, "always")
        self.end_trainers()
        self.assert_stops(daemon)
        self.assertEqual(reader.wait(), 1)
        self.assertNotIn("has moved", reader.err)

    def test_nothing_that_is_kept_is_needed(self):
        self.moves_while_training("none")

    def test_racing_updates(self):
        self.rules = {"policy": "hogwild", "threads": 1}  # one thread: no update overwrites another
        self.moves_while_training("checkpoint")

    def test_rounds(self):
        self.rules = {"policy": "sync", "policy__round_timeout_ms": 10_000, "policy__on_timeout": "proceed"}
        daemons = self.several(2, "a")
        for rank in range(2):
            self.counting(daemons, rank, 2, inflight=0)
        self.until_each_more("before the move")
        others = self.several(3, "b")
        self.assert_moves(daemons, others)
        self.until_each_more("after the move")
        self.end_trainers()
        # A round is the mean of its gradients, all -1: the parameters count the rounds that the trainers were in,
        # together or not, at each daemon separately.
        for rounds in self.values(others[0]):
            self.assertGreaterEqual(rounds, max(self.answered_by_trainer()))
            self.assertLessEqual(rounds, self.answered())

    def kill_during_move(self, whom, name, old, new):
        """Kills one participant of a move at a random moment; returns the daemons that serve afterwards, all of them
        running again."""
        move = self.move(old, new)
        processes.until("the move has begun", lambda: "is about to move" in old[0].err or not move.runs())
        time.sleep(self.random.uniform(0, LONGEST_S))
        victim = {"old": old[1], "lead": old[0], "new": new[1], "command": move}[whom]
        victim.kill()
        if move.wait() != 0 and victim is not move:
            self.assertIn(victim.address, move.err)
        if victim is not old[0]:
            processes.until("the lead has decided", lambda: "has moved to" in old[0].err or "aborted" in old[0].err)
        moved = (self.folder / f"{name}a-0" / "moved.json").exists()
        if victim in old and (not moved or victim is old[0]):
            self.again(victim, old, f"{name}a", "log")
        if victim in new and moved:
            self.again(victim, new, f"{name}b", "log")
        if victim is old[0] and moved:
            again = self.move(old, new)
            self.assert_ends(again)
            self.assertIn("the model had moved there already", again.out)
            self.assertEqual(old[0].status()["state"], "moved")
        return new if moved else old

    def kills_of(self, whom):
        for kill in range(KILLS):
            self.trainers = []
            name = f"{kill}-"
            old = self.several(2, f"{name}a", "log")
            for rank in range(2):
                self.counting(old, rank, 2)
            self.until_each_more("before the move")
            serving = self.kill_during_move(whom, name, old, self.several(3, f"{name}b", "log"))
            print(f"{whom} killed: {'the new daemons serve' if len(serving) == 3 else 'the old ones continue'}")
            self.check_counts(serving[0])

    def test_an_old_daemon_is_killed_in_the_midst(self):
        self.kills_of("old")

    def test_an_old_daemon_that_was_started_again_keeps_the_model_until_its_trainers_are_back(self):
        old = self.several(2, "a", "log")
        for rank in range(2):
            self.counting(old, rank, 2)
        self.until_each_more("before the daemon dies")
        old[1].kill()
        self.again(old[1], old, "a", "log")
        new = self.several(3, "b", "log")
        refusals = []

        def moves():
            move = self.move(old, new)
            if move.wait() == 0:
                return True
            refusals.append(move.err)
            return False

        processes.until("the model moves", moves)
        for line in refusals:
            self.assertIn("is not back yet; try again", line)
        self.until_each_more("after the move")
        self.check_counts(new[0])

    def test_the_lead_is_killed_in_the_midst(self):
        self.kills_of("lead")

    def test_a_new_daemon_is_killed_in_the_midst(self):
        self.kills_of("new")

    def test_the_command_is_killed_in_the_midst(self):
        self.kills_of("command")

    def test_a_trainer_that_does_not_quiesce_keeps_the_model_where_it_is(self):
        old = self.several(2, "a")
        stopped, _ = self.counting(old, 0, 2), self.counting(old, 1, 2)
        self.until_each_more("before the move")
        stopped.signal(signal.SIGSTOP)
        move = self.move(old, self.several(3, "b"), "--patience", "0.2")
        line = self.assert_gives_up(move)
        self.assertIn("not all trainers quiesced", line)
        stopped.signal(signal.SIGCONT)
        self.check_counts(old[0])

    def test_a_daemon_that_dies_while_trainers_quiesce_is_named(self):
        for whom in ("old", "new"):
            old, new = self.several(2, f"{whom}a", "log"), self.several(2, f"{whom}b", "log")
            self.trainers = []
            trainers = [self.counting(old, rank, 2) for rank in range(2)]
            self.until_each_more("before the move")
            trainers[1].signal(signal.SIGSTOP)
            move = self.move(old, new, "--patience", processes.WAIT_S)
            processes.until("the move has begun", lambda: "is about to move" in old[0].err)
            victim = {"old": old, "new": new}[whom][1]
            victim.kill()
            self.assertIn(f"{victim.address}: the connection broke", self.assert_gives_up(move))
            for trainer in trainers:
                trainer.kill()

    def test_a_lead_whose_disk_fails_ends_and_tells_when_it_is_started_again(self):
        old = self.several(2, "a", "log")
        for rank in range(2):
            self.counting(old, rank, 2)
        self.until_each_more("before the move")
        mark = self.folder / "a-0" / "moved.json"  # a folder in its place: it can be neither written nor removed
        (mark / "in the way").mkdir(parents=True)
        move = self.move(old, self.several(3, "b", "log"))
        self.assertNotEqual(move.wait(), 0)
        self.assertIn("it is unknown whether the model has moved: ", move.err)
        self.assertIn("during the commit, so its outcome is unknown", move.err)
        self.assertNotIn("trainers continue at the source daemons", move.err)
        old[0].wait()
        (mark / "in the way").rmdir()
        mark.rmdir()
        self.again(old[0], old, "a", "log")
        self.until_each_more("after the daemon was started again")
        self.check_counts(old[0])

    def test_what_cannot_be_kept_leaves_nothing_behind(self):
        old = self.several(2, "a")
        self.counting(old)
        self.until_each_more("before the move")
        new = self.several(1, "b", "checkpoint", exit_when_done=True)
        in_the_way = self.folder / "b-0" / "trainers.json" / "in the way"  # so that the finished ranks cannot be saved
        in_the_way.mkdir(parents=True)
        self.assertIn("trainers.json", self.assert_gives_up(self.move(old, new)))
        self.assertEqual([path.name for path in (self.folder / "b-0").glob("checkpoint-*")], [])
        in_the_way.rmdir()
        in_the_way.parent.rmdir()
        processes.until("what was left is gone", lambda: "nothing of it is left" in new[0].err)
        self.assert_moves(old, new)
        self.until_each_more("after the move")
        self.end_trainers()
        self.assert_ends(new[0])

    def assert_gives_up(self, move):
        self.assertNotEqual(move.wait(), 0)
        self.assertIn("trainers continue at the source daemons", move.err)
        return move.err

    def test_what_cannot_be_is_refused_by_a_line(self):
        old = self.several(2, "a")
        self.counting(old)
        self.until_each_more("before the move")
        self.assertIn("has a model already", self.assert_gives_up(self.move(old, old)))
        other = self.several(3, "b", optimizer='{"type":"adam","lr":1}')
        line = self.assert_gives_up(self.move(old, other))
        self.assertIn(f'{other[0].address}: its configuration differs from that of the previous daemons: ', line)
        self.assertIn('optimizer.type is "adam" here, "sgd" there', line)
        addresses = [self.unix_address(f"c{index}.sock") for index in range(2)]
        unlike = [self.member(addresses, "c", index, optimizer=f'{{"type":"sgd","lr":{index + 1}}}') for index in range(2)]
        self.assertRegex(self.assert_gives_up(self.move(old, unlike)), r"must have the same settings, but \S+ has optimizer.lr: 1.*, \S+ has optimizer.lr: 2")
        one = self.daemon(listen=(self.unix_address("one.sock"), self.unix_address("also.sock")), policy="locked", optimizer=counting.SGD)
        for names, why in (([one.address] * 2, f"--to: {one.address} is given twice"),
                           (one.addresses, f"--to: {one.addresses[0]} and {one.addresses[1]} are the same daemon")):
            twice = self.start_psd("move", "--server", old[0].address, *(word for name in names for word in ("--to", name)))
            self.assert_fails(twice, why)
        self.assertNotIn("is about to move", old[0].err)
        self.check_counts(old[0])

    @unittest.skipUnless(processes.TRAINER, "psd-trainer is not built")
    def test_what_trainers_learned_is_compared_before_they_are_notified(self):
        rules = {"policy": "async_diloco", "policy__period": 3, "optimizer": '{"type":"delayed_nesterov","lr":0.7,"delay":2}'}
        self.rules = rules
        old = self.several(1, "a")
        learner = self.endless_trainer(old[0], more=("--codec", "int8"))
        refused = {
            "policy.period is 50 here, 3 there": {"policy__period": 50},
            "policy.dynamic_period is true here, false there": {"policy__dynamic_period": True},
            "optimizer.delay is 3 here, 2 there; policy.learners is 3 here, 2 there": {
                "optimizer": '{"type":"delayed_nesterov","lr":0.7,"delay":3}'},
            "policy.inner.lr is 0.5 here, 0.001 there": {"policy__inner": '{"type":"adamw","lr":0.5}'},
            "world_size is 2 here, 1 there": {"world_size": 2},
            "pushes: codec 'int8' is not allowed": {"codecs__push__allowed": '["none"]'},
        }
        for number, (why, other) in enumerate(refused.items()):
            with self.subTest(why):
                self.assertIn(why, self.assert_gives_up(self.move(old, self.several(1, f"b{number}", **other))))
        self.assertNotIn("is about to move", old[0].err)
        new = self.several(1, "c", optimizer='{"type":"delayed_nesterov","lr":0.1,"delay":2}', codecs__push__default="topk")
        self.assert_moves(old, new)  # the learning rate is the new daemon's, and so is the codec of trainers that request none
        new[0].until_status("it trains on", lambda status: status["counters"]["gradients"] > 0)
        self.assertTrue(learner.runs())
        self.assertEqual(new[0].status()["trainers"][0]["codec"], "int8")

    @unittest.skipUnless(processes.TRAINER, "psd-trainer is not built")
    def test_more_than_a_daemon_takes_leaves_the_model_where_it_is(self):
        old = self.several(2, "a")
        self.endless_trainer(old[0])
        new = self.several(1, "b", limits__arriving_bytes=1 << 16)
        self.assertIn("limits.arriving_bytes is 65536 here, and the parameters", self.assert_gives_up(self.move(old, new)))
        self.assertNotIn("is about to move", old[0].err)
        parameters = sum(shard["elements"] for daemon in old for shard in daemon.status()["shards"])
        changed = self.psd("set", f"limits.arriving_bytes={4 * parameters + 100}", "--server", new[0].address)
        self.assertEqual(changed.returncode, 0, changed.stderr)
        self.assertIn("needs more than limits.arriving_bytes", self.assert_gives_up(self.move(old, new)))
        new[0].until_status("nothing of it is left", lambda status: status["state"] != "arriving" and status["arriving_bytes"] == 0)
        self.assertEqual(self.psd("set", f"limits.arriving_bytes={8 * parameters}", "--server", new[0].address).returncode, 0)
        self.assert_moves(old, new)
        new[0].until_status("it trains on", lambda status: status["counters"]["gradients"] > 0)

    def move_blocked_at_install(self, old, name):
        """A move to two daemons, of which the second cannot finish before unblock(): its disk blocks."""
        new = self.several(2, name, "checkpoint")
        stuck = self.folder / f"{name}-1" / f"arriving.json.tmp.{new[1].pid}"
        os.mkfifo(stuck)
        move = self.move(old, new)
        new[0].until_status("its partition is in place", lambda status: status["durability"]["checkpoints"] > 0)
        self.assertEqual(new[0].status()["state"], "arriving")
        return new, move, stuck

    def assert_free(self, daemon, folder):
        daemon.until_status("it is free again", lambda status: status["state"] == "waiting for a model")
        self.assertEqual([path.name for path in folder.glob("*-*")], [])
        self.assertFalse((folder / "arriving.json").exists())

    def unblock(self, stuck):
        """Unblocks a disk, with an error."""
        with open(stuck, "rb"):
            pass

    def test_daemons_whose_sibling_failed_are_free_again(self):
        old = self.several(2, "a", "log")
        self.counting(old)
        self.until_each_more("before the move")
        new, move, stuck = self.move_blocked_at_install(old, "b")
        self.unblock(stuck)
        self.assertIn(new[1].address, self.assert_gives_up(move))
        for index in range(2):
            self.assert_free(new[index], self.folder / f"b-{index}")
        stuck.unlink(missing_ok=True)
        self.assert_moves(old, new)
        self.until_each_more("after the move")
        self.check_counts(new[0])

    def test_daemons_whose_command_died_are_free_again(self):
        old = self.several(2, "a", "log")
        self.counting(old)
        self.until_each_more("before the move")
        new, move, stuck = self.move_blocked_at_install(old, "b")
        new[0].kill()
        self.again(new[0], new, "b", "checkpoint")
        self.assertEqual(new[0].status()["state"], "arriving")
        move.kill()
        self.assert_free(new[0], self.folder / "b-0")
        self.unblock(stuck)
        self.assert_free(new[1], self.folder / "b-1")
        self.until_each_more("after the move")
        self.check_counts(old[0])

    @unittest.skipUnless(processes.TRAINER, "psd-trainer is not built")
    def test_learners_without_rounds_continue_at_other_daemons(self):
        self.rules = {"policy": "async_diloco", "policy__period": 3, "policy__dynamic_period": True,
                      "optimizer": '{"type":"delayed_nesterov","lr":0.7,"momentum":0.9,"delay":2}'}
        daemons = self.several(1, "a", "log")
        learners = [self.endless_trainer(daemons[0], rank, 2) for rank in range(2)]

        def until_version(least):
            """Until all shards have more than `least` pushes; returns the count."""
            daemons[0].until_status("pushes continue", lambda status: status["shards"] and all(
                shard["version"] > least for shard in status["shards"]))
            return min(shard["version"] for shard in daemons[0].status()["shards"])

        version = until_version(10)
        for name, count in (("b", 2), ("c", 1)):
            others = self.several(count, name, "log")
            self.assert_moves(daemons, others)
            daemons = others
            version = until_version(version + 10)
        self.assertTrue(all(learner.runs() for learner in learners))

    @unittest.skipUnless(processes.TRAINER, "psd-trainer is not built")
    def test_trainers_that_are_bound_to_their_daemon_keep_the_model_where_it_is(self):
        policies = (("it exchanges the model in fragments", 1, {"type": "diloco", "period": 2, "fragments": 2}),
                    ("it exchanges the model in fragments", 2, {"type": "diloco", "period": 2, "fragments": 2, "round_timeout_ms": 600_000}),
                    ("it pulls differences", 1, {"type": "diloco", "period": 2, "deltas": "int8"}),
                    ("it is in an averaging group", 1, {"type": "allreduce"}))
        for number, (why, count, policy) in enumerate(policies):
            with self.subTest(policy):
                kind = policy.pop("type")
                self.rules = {"policy": kind, **{f"policy__{key}": value for key, value in policy.items()}}
                old = self.several(count, f"{number}a", "log")
                trainer = self.endless_trainer(old[0])
                self.assertIn(why, self.assert_gives_up(self.move(old, self.several(1, f"{number}b"))))
                old[0].until_status("it trains on", lambda status: status["counters"]["gradients"] > 0)
                trainer.signal(signal.SIGINT)
                trainer.wait()


if __name__ == "__main__":
    processes.main()
