"""A pair at critical moments: a daemon dies in the middle of a gradient, a race or a round, with many pushes in flight,
together with the other one, or restarts at once; a daemon is stopped for moments; a clock jumps."""

import os
import signal
import time
import unittest

import counting_pairs
import etcd
import faulty_machine
import processes

KILLS = int(os.environ.get("FAULT_MOMENTS_KILLS", "3"))
SMALL_SLICE = 256  # bytes
MANY = 64  # shards, or pushes in flight
STOPS = 5
PATIENT = {"alone_ms": 600_000}  # longer than any wait of these tests
DAY_S = 86400
JUMPS_S = (DAY_S, -DAY_S)


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class StandbyMoments(counting_pairs.CountingPairs):
    def log(self, name):
        return {"type": "log", "path": str(self.folder / name)}

    def settled(self):
        """Until no push is answered between two calls."""
        stood = []

        def same():
            before, stood[:] = list(stood), self.answered_by_trainer()
            return before == stood

        processes.until("no push is answered", same)

    def test_a_primary_that_is_started_again_at_once_becomes_the_standby(self):
        primary, standby = self.pair()
        for rank in range(2):
            self.counting((primary, standby), rank, 2)
        for kill in range(KILLS):
            primary.until_in_sync()
            self.until_more("before the primary is killed", 20)
            primary.kill()
            again = self.restarted(primary)  # before any takeover starts
            self.until_primary(standby, kill + 2)
            self.assertEqual(standby.until_in_sync()["replica_set"]["term"], kill + 2)
            again.until_status("it is the standby", lambda status: status["replica_set"]["role"] == "standby")
            primary, standby = standby, again
        self.until_more("by the last primary", 20)
        self.check_counts(primary)
        self.assertEqual(self.epochs(), {*range(1, KILLS + 2)})

    def is_half_sent(self, trainer, primary):
        """Stops the trainer, and returns whether its last push is in only some shards of the primary; if not, continues
        it."""
        trainer.signal(signal.SIGSTOP)
        found = [None, None]
        processes.until("what it has sent is in", lambda: found.append(self.versions(primary)) or found[-1] == found[-2])
        if len(found[-1]) > 1:
            return True
        trainer.signal(signal.SIGCONT)
        return False

    def test_a_primary_that_dies_under_a_half_sent_gradient_loses_nothing(self):
        primary, standby = self.pair()
        trainer = self.counting((primary, standby), chunk_bytes=SMALL_SLICE)
        for kill in range(KILLS):
            primary.until_in_sync()
            self.until_more("before the primary is killed", 20)
            processes.until("a push is in some shards and not in others", lambda: self.is_half_sent(trainer, primary))
            primary.kill()
            self.until_primary(standby, kill + 2)
            trainer.signal(signal.SIGCONT)
            self.until_more("by its standby", 20)
            primary, standby = standby, self.restarted(primary)
        self.check_counts(primary)

    def test_many_pushes_under_way_are_sent_again_and_recognised(self):
        primary, standby = self.pair()
        self.counting((primary, standby), inflight=MANY)
        [ledger] = self.ledgers
        recognised = 0
        for kill in range(KILLS):
            primary.until_in_sync()
            self.until_more("before the primary is killed", 2 * MANY)
            primary.kill()
            self.until_primary(standby, kill + 2)
            sent = max(ledger.read_new_lines().pushes)
            self.until_more("by its standby", 2 * MANY)
            again = [step for step, push in ledger.pushes.items() if step <= sent and push.by[:1] and push.by[0][1] == kill + 2]
            self.assertGreater(len(again), 0)
            recognised += standby.counter("repeated_slices")
            print(f"{len(again)} pushes were sent again, of which the standby had slices already: {recognised} by now")
            primary, standby = standby, self.restarted(primary)
        self.check_counts(primary)
        self.assertGreater(recognised, 0)

    def test_a_primary_dies_while_updates_race(self):
        """Updates lost by races are lost in the primary alone: its standby has each answered push."""
        self.races = True
        primary, standby = self.pair(policy="hogwild")
        self.assert_ends(self.counting((primary, standby), rank=2, world_size=3, pushes=1))
        primary.until_in_sync()
        # These trainers do not know the standby, so no updates race there.
        racing = [self.counting((primary,), rank, 3) for rank in range(2)]
        self.until_more("in a race", 200)
        primary.kill()
        self.until_primary(standby, 2)
        for trainer in racing:
            trainer.kill()
        self.check_model(standby.address)

    def test_a_primary_that_dies_in_the_midst_of_rounds_of_many_shards(self):
        settings = {"policy": "sync", "shards": MANY}
        primary, standby = self.pair(**settings)
        for rank in range(2):
            self.counting((primary, standby), rank, 2, inflight=0, chunk_bytes=SMALL_SLICE)
        cut_off = 0
        for kill in range(KILLS):
            primary.until_in_sync()
            self.until_more("before the primary is killed", 20)
            primary.kill()
            died = time.monotonic_ns()
            self.until_primary(standby, kill + 2)
            self.until_more("by its standby", 20)
            cut_off += any(push.sent < died and push.by == self.newest_answer().by for ledger in self.ledgers for push in ledger.all_answered())
            primary, standby = standby, self.restarted(primary, **settings)
        print(f"{cut_off} of {KILLS} kills cut off a round")
        self.end_trainers()
        [rounds] = self.versions(primary)
        self.assertGreaterEqual(rounds, max(self.answered_by_trainer()))
        self.assertEqual(self.values(primary), {float(rounds)})

    def newest_answer(self):
        return max((push for ledger in self.ledgers for push in ledger.all_answered()), key=lambda push: push.answered)

    def test_a_standby_that_stands_still_for_moments_holds_up_pushes_and_stays(self):
        primary, standby = self.pair(replication=PATIENT)
        for rank in range(2):
            self.counting((primary, standby), rank, 2)
        before = primary.until_in_sync()["replica_set"]["standby"]
        for _ in range(STOPS):
            standby.signal(signal.SIGSTOP)
            self.settled()
            standby.signal(signal.SIGCONT)
            self.until_more("after it continues", 20)
        group = primary.until_in_sync()["replica_set"]
        self.assertEqual((group["term"], group["standby"]), (1, before))
        self.check_counts(primary)

    @unittest.skipUnless(faulty_machine.PRELOAD, "what lets a clock jump is not built")
    def test_clocks_that_jump_change_nothing(self):
        machines = [faulty_machine.Machine(self.folder / f"control-{place}", self.folder / "no disk") for place in range(2)]
        for machine in machines:
            self.addCleanup(machine.close)

        def over(place):
            durability = {**self.log(f"saved-{place}"), "every_updates": 20}  # each checkpoint reads the clock
            return self.one(environment=machines[place].environment, durability=durability)

        primary = over(0)
        primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        standby = over(1)
        for rank in range(2):
            self.counting((primary, standby), rank, 2)
        before = primary.until_in_sync()["replica_set"]["standby"]
        for jump in JUMPS_S:
            for machine, shift in zip(machines, (jump, -jump)):
                machine.shift_clock(shift)
                self.until_more("after a clock has jumped")
        group = primary.until_in_sync()["replica_set"]
        self.assertEqual((group["term"], group["standby"]), (1, before))
        primary.kill()
        self.until_primary(standby, 2)
        self.until_more("by its standby", 40)
        for machine in machines:
            self.assertGreater(machine.shifted, 0)
        self.check_counts(standby)

    def test_both_end_at_the_same_time_and_resume_when_they_are_started_again(self):
        places = {}  # by folder, the address

        def over(folder):
            daemon = self.one(listen=places.get(folder, f"tcp://{processes.LOOPBACK}:0"), durability=self.log(folder))
            places[folder] = daemon.address
            return daemon

        daemons = [over("one")]
        daemons[0].until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        daemons.append(over("other"))
        for rank in range(2):
            self.counting(daemons, rank, 2)
        for _ in range(2):
            self.until_one_serves(daemons).until_in_sync()
            self.until_more("before both are to end", 20)
            for daemon in daemons:
                daemon.signal(signal.SIGTERM)
            for daemon in daemons:
                self.assert_ends(daemon)
            daemons = [over(folder) for folder in places]
        primary = self.until_one_serves(daemons)
        primary.until_in_sync()
        self.until_more("when both were started again", 20)
        self.check_counts(primary)

    def until_one_serves(self, daemons):
        """Returns the one that serves."""
        return processes.until("one is the primary", lambda: next(
            (daemon for daemon in daemons if daemon.status()["replica_set"]["role"] == "primary"), None))


if __name__ == "__main__":
    processes.main()
