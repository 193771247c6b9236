"""The model moves between pairs, with a real etcd, while trainers work and primaries are killed during the move."""

import os
import random
import shutil
import signal
import time
import unittest

import counting
import etcd
import processes
from counting_pairs import PATIENT

SEED = int(os.environ.get("FAULT_MOVES_SEED", "1"))
KILLS = int(os.environ.get("FAULT_MOVES_KILLS", "2"))  # of each participant
LONGEST_S = 0.25  # after the move has started


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class MovesOfPairs(counting.CountingTest):
    def setUp(self):
        super().setUp()
        self.etcd = etcd.Etcd(self)
        self.random = random.Random(SEED)
        self.made = {}  # by address, the arguments of its daemon

    def start(self, address, **settings):
        self.made[address] = settings
        return self.daemon(listen=(address,), policy="locked", optimizer=counting.SGD, **settings)

    def again(self, dead):
        return self.start(dead.address, **self.made[dead.address])

    def pairs(self, name, count=1, kind="log"):
        """By partition: a primary and its standby."""
        addresses = [[self.unix_address(f"{name}{pair}{place}.sock") for place in "ab"] for pair in range(count)]
        found = []
        for index, of in enumerate(addresses):
            settings = {"engine": {"endpoints": [self.etcd.endpoint], "prefix": f"/psd/{name}/{index}"}, "replication": PATIENT}
            if count > 1:
                settings.update(daemons=[",".join(each) for each in addresses], index=index)
            pair = []
            for place, address in zip("ab", of):
                if kind != "none":
                    settings["durability"] = {"type": kind, "path": str(self.folder / f"{name}-{index}{place}")}
                pair.append(self.start(address, **settings))
                if place == "a":
                    pair[0].until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
            found.append(pair)
        return found

    def alone(self, name, kind="log"):
        address = self.unix_address(f"{name}.sock")
        return self.start(address, durability={"type": kind, "path": str(self.folder / name)})

    def counting(self, daemons, ranks=2):
        for rank in range(ranks):
            self.count(",".join(daemon.address for daemon in daemons), rank, ranks, chunk_bytes=1 << 18)

    def pairs_at_work(self, count=1):
        """Pairs in sync with trainers pushing to them."""
        pairs = self.pairs("a", count)
        self.counting(pairs[0])
        for pair in pairs:
            pair[0].until_in_sync()
        self.until_each_more("before the move")
        return pairs

    def move(self, old, new, *more):
        return self.start_psd("move", "--server", ",".join(daemon.address for daemon in old), "--to", ",".join(
            daemon.address for daemon in new), *more)

    def assert_moves(self, old, new, ending):
        move = self.move(old, new)
        self.assert_ends(move)
        for daemon in ending:
            self.assert_ends(daemon)

    def assert_gives_up(self, move):
        self.assertNotEqual(move.wait(), 0)
        self.assertIn("trainers continue at the source daemons", move.err)
        return move.err

    def test_a_model_goes_from_a_pair_to_pairs_to_a_daemon_alone_and_to_a_pair(self):
        [old] = self.pairs_at_work()
        new = self.pairs("b", 2)
        self.assert_moves(old, new[0][:1], old)
        for pair in new:
            pair[0].until_in_sync()
        self.until_each_more("at two pairs")
        alone = self.alone("c")
        self.assert_moves(new[1], [alone], new[0] + new[1])
        self.until_each_more("at a daemon alone")
        [last] = self.pairs("d", kind="none")
        self.assert_moves([alone], last, [alone])
        last[0].until_in_sync()
        last[0].kill()
        self.until_each_more("at the standby of a pair to which it has moved")
        self.check_counts(last[1])

    def test_readers_go_from_a_pair_to_a_pair_and_from_there_to_a_daemon_alone(self):
        [old] = self.pairs_at_work()
        addresses = ",".join(daemon.address for daemon in old)
        asked, always = self.read(addresses, "asked"), self.read(addresses, "always")
        [new] = self.pairs("b", kind="none")
        self.assert_moves(old, new, old)
        new[0].until_in_sync()
        self.until_pulls(always, "at the new pair", 3)
        self.asked(asked, "at the new pair")
        alone = self.alone("c")
        self.assert_moves(new, [alone], new)
        self.until_each_more("at a daemon alone")
        answered = self.answered()
        least, _ = self.asked(asked, "of who made no call meanwhile")
        self.assertGreaterEqual(least, answered)
        self.until_pulls(always, "at a daemon alone", 3)
        self.check_counts(alone)

    def test_a_daemon_started_again_after_a_move_serves_no_trainer(self):
        [old] = self.pairs_at_work()
        alone = self.alone("b")
        self.assert_moves(old, [alone], old)
        for daemon in old:
            again = self.again(daemon)
            status = again.until_status("it knows", lambda status: status["state"] == "moved")
            self.assertEqual(status["moved_to"], [alone.address])
            remedy = "remove the key '/psd/a/0/plan' from the engine, and start them over empty folders, or without '"
            self.assertRegex(again.err, f"moved.json' says; .*{remedy}.*/moved.json'")
            for command in ("recover", "switch"):
                self.assert_fails(self.start_psd(command, "--server", again.address), f"the model has moved to {alone.address}")
            told = self.move([again], [alone])
            self.assert_ends(told)
            self.assertIn("the model had moved there already", told.out)
            back = self.move([alone], [again])
            self.assertNotEqual(back.wait(), 0)
            self.assertIn(remedy, back.err)
            self.assert_stops(again)
        self.check_counts(alone)

    def test_a_stale_model_is_not_served_where_the_engine_has_lost_that_it_has_moved(self):
        [old] = self.pairs_at_work()
        old[0].kill()  # so that both folders have a model
        old[1].until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        self.until_each_more("by the standby")
        old = [old[1], self.again(old[0])]
        old[0].until_in_sync()
        alone = self.alone("b")
        self.assert_moves(old, [alone], old)
        self.assertEqual(self.etcd.remove("/psd/a/0/plan"), 1)
        for daemon in old:
            again = self.again(daemon)
            status = again.until_status("it knows", lambda status: status["state"] == "moved")
            self.assertEqual((status["moved_to"], status["replica_set"]["term"]), ([alone.address], 0))
            self.assert_stops(again)
        for place in "ab":
            left = self.start_psd("repartition", self.folder / f"a-0{place}", "--daemons", 1, "--to", self.folder / "next")
            self.assert_fails(left, "moved.json' says that the model has moved to ")
        self.check_counts(alone)

    def test_a_pair_whose_plan_is_removed_after_a_move_may_be_moved_to(self):
        [old] = self.pairs_at_work()
        alone = self.alone("b")
        self.assert_moves(old, [alone], old)
        self.assertEqual(self.etcd.remove("/psd/a/0/plan"), 1)
        for place in "ab":
            shutil.rmtree(self.folder / f"a-0{place}")
        self.until_each_more("at the new daemon")
        first = self.again(old[0])
        first.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        second = self.again(old[1])
        # Given only one address of a pair, trainers receive both.
        first.until_status("the other one waits", lambda status: status["replica_set"]["others"] == [old[1].address])
        self.assert_moves([alone], [first], [alone])
        first.until_in_sync()
        self.until_each_more("at the pair")
        first.kill()
        self.until_each_more("at its standby")
        self.check_counts(second)

    def test_daemons_of_several_pairs_that_are_started_again_after_a_move_are_stopped(self):
        old = self.pairs_at_work(2)
        alone = self.alone("b")
        self.assert_moves(old[0], [alone], old[0] + old[1])
        for daemons in ([old[0][1]], [old[1][1]], [old[0][0], old[1][1]]):
            again = [self.again(daemon) for daemon in daemons]
            for daemon in again:
                daemon.until_status("it knows", lambda status: status["state"] == "moved")
            stopped = self.psd("stop", "--server", again[-1].address)
            self.assertEqual(stopped.returncode, 0, stopped.stderr)
            for daemon in again:
                self.assert_ends(daemon)
        self.check_counts(alone)

    def kill_during_move(self, victim, old, new):
        """Returns whether the model has moved."""
        move = self.move(old, new[0])
        processes.until("the move has begun", lambda: "is about to move" in old[0].err or not move.runs())
        time.sleep(self.random.uniform(0, LONGEST_S))
        victim.kill()
        move.wait()
        if victim is not old[0]:
            processes.until("the lead has decided", lambda: "has moved to" in old[0].err or "aborted" in old[0].err)
            return "has moved to" in old[0].err
        found = {}

        def knows():
            """Or it has ended with its primary, which ended the run itself."""
            if not old[1].runs():
                return True
            try:
                found.update(old[1].status())
            except AssertionError:
                return False
            return found["state"] in ("moved", "stopping") or found["replica_set"]["role"] == "primary"

        processes.until("the standby knows the outcome of its primary", knows)
        return not old[1].runs() or found["state"] != "serving"

    def kills(self):
        """For each kill: the pair that has the model, with trainers at work, and the two pairs to which it moves."""
        for kill in range(KILLS):
            self.trainers = []
            [old] = self.pairs(f"a{kill}")
            self.counting(old)
            old[0].until_in_sync()
            self.until_each_more("before the move")
            yield old, self.pairs(f"b{kill}", 2)

    def test_the_old_primary_is_killed_in_the_midst(self):
        for old, new in self.kills():
            moved = self.kill_during_move(old[0], old, new)
            print("the new pairs serve" if moved else "the standby serves")
            self.until_each_more("after the kill")
            self.check_counts(new[0][0] if moved else old[1])

    def test_a_new_primary_is_killed_in_the_midst(self):
        for old, new in self.kills():
            moved = self.kill_during_move(new[1][0], old, new)
            print("the new pairs serve" if moved else "the old one continues")
            if moved:
                self.again(new[1][0])
            self.until_each_more("after the kill")
            self.check_counts(new[0][0] if moved else old[0])

    def stuck_move(self, old, new):
        """A move in which the last of the new primaries, whose disk is stopped, has not yet installed its partition."""
        path = self.made[new[1][0].address]["durability"]["path"]
        stuck = f"{path}/arriving.json.tmp.{new[1][0].pid}"
        os.mkfifo(stuck)
        move = self.move(old, new[0])
        new[0][0].until_status("its partition is in place", lambda status: status["durability"]["checkpoints"] > 0)
        self.assertEqual(new[0][0].status()["state"], "arriving")
        return move, stuck

    def test_a_standby_that_takes_over_before_the_move_counts_keeps_the_model(self):
        [old] = self.pairs_at_work()
        new = self.pairs("b", 2)
        move, stuck = self.stuck_move(old, new)
        old[0].kill()
        self.until_each_more("at the standby")
        with open(stuck, "rb"):
            pass
        self.assert_gives_up(move)
        for pair in new:
            pair[0].until_status("it is free again", lambda status: status["state"] == "waiting for a model")
        self.assertEqual(old[1].status()["replica_set"]["role"], "primary")
        self.check_counts(old[1])

    def undecided_move(self, old, new):
        """A move that only etcd, which is down, has not recorded yet."""
        self.etcd.kill()
        move = self.move(old, [new])
        new.until_status("all of it is there", lambda status: status["durability"]["checkpoints"] > 0)
        self.assertTrue(move.runs())
        return move

    def test_a_standby_whose_primary_died_when_the_move_counted_tells_where_the_model_is(self):
        [old] = self.pairs_at_work()
        alone = self.alone("b")
        move = self.undecided_move(old, alone)
        for trainer, _ in self.trainers:  # the primary waits for them before it ends, and its standby with it
            trainer.signal(signal.SIGSTOP)
        self.assertTrue(self.etcd.start())
        self.assert_ends(move)
        old[0].kill()
        old[1].until_status("it knows", lambda status: status["state"] == "moved")
        self.assertRegex(old[1].err, "as the cluster document says; .*remove the key '/psd/a/0/plan' .*without '.*/moved.json'")
        for trainer, _ in self.trainers:
            trainer.signal(signal.SIGCONT)
        self.until_each_more("at the new daemon")
        told = self.move(old[1:], [alone])
        self.assert_ends(told)
        self.assertIn("the model had moved there already", told.out)
        self.assert_stops(old[1])
        self.check_counts(alone)

    def test_a_primary_that_dies_undecided_leaves_the_model_to_its_standby(self):
        [old] = self.pairs_at_work()
        alone = self.alone("b")
        move = self.undecided_move(old, alone)
        old[0].kill()
        self.assertNotEqual(move.wait(), 0)
        self.assertIn("during the commit, so its outcome is unknown", move.err)
        self.assertTrue(self.etcd.start())
        self.until_each_more("at the standby")
        self.assertEqual(alone.status()["state"], "arriving")  # the lead, which knows the outcome, is dead
        self.again(old[0])
        old[1].until_in_sync()
        self.assert_moves(old, [alone], old[1:])
        self.until_each_more("after a move")
        self.check_counts(alone)

    def test_a_daemon_not_notified_of_a_completed_move_detects_it_and_ends(self):
        old = self.pairs_at_work(2)
        old[1][1].kill()  # or it would replace the stopped one
        old[1][0].until_status("it is alone", lambda status: status["replica_set"]["standby"] == "")
        alone = self.alone("b")
        move = self.undecided_move(old[0], alone)
        old[1][0].signal(signal.SIGSTOP)
        self.assertTrue(self.etcd.start())
        processes.until("the move counts", lambda: "has moved to" in old[0][0].err)
        alone.until_status("it knows", lambda status: status["state"] == "serving")
        self.until_each_more("at the new daemon")
        self.assertTrue(move.runs())
        move.kill()
        old[1][0].signal(signal.SIGCONT)
        self.assert_ends(old[1][0])
        self.assertIn(f"the model has moved to {alone.address}", old[1][0].err)
        again = self.again(old[1][1])
        again.until_status("it knows", lambda status: status["state"] == "moved")
        self.assert_stops(again)
        self.check_counts(alone)

    def test_a_stopped_command_holds_no_daemon(self):
        [old] = self.pairs_at_work()
        new = self.pairs("b", 2)
        move, stuck = self.stuck_move(old, new)
        move.signal(signal.SIGSTOP)
        self.until_each_more("though the command stands still")
        new[0][0].until_status("it is free again", lambda status: status["state"] == "waiting for a model")
        self.assertIn("psd move no longer sends heartbeats", old[0].err)
        with open(stuck, "rb"):
            pass
        new[1][0].until_status("it is free again", lambda status: status["state"] == "waiting for a model")
        move.signal(signal.SIGCONT)
        self.assert_gives_up(move)
        self.assert_moves(old, new[0][:1], old)
        self.until_each_more("after a move")
        self.check_counts(new[0][0])

    def test_without_etcd_a_move_waits_to_count(self):
        [old] = self.pairs_at_work()
        alone = self.alone("b")
        move = self.undecided_move(old, alone)
        answered = self.answered()
        self.assertTrue(self.etcd.start())
        self.assert_ends(move)
        for daemon in old:
            self.assert_ends(daemon)
        self.assertEqual(alone.status()["state"], "serving")
        processes.until("pushes are answered there", lambda: self.answered() > answered)
        again = self.move(old, [alone])
        self.assert_ends(again)
        self.assertIn("the model has moved already", again.out)
        other = self.move(old, [self.alone("c")])
        self.assertNotEqual(other.wait(), 0)
        self.assertIn("nothing was done", other.err)
        self.check_counts(alone)


if __name__ == "__main__":
    processes.main()
