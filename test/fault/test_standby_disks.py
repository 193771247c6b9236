"""A pair whose pushes wait for both disks: whichever daemon dies, alone or with the other, and whichever disk is left,
every answered push is in the model once, and no operator has to decide which daemon resumes."""

import errno
import json
import os
import random
import shutil
import signal
import sys
import time
import unittest

import counting_pairs
import etcd
import faulty_machine
import processes

FOLDERS = ("one", "other")
SECONDS = float(os.environ.get("FAULT_DISKS_SECONDS", "6"))
BOTH = {"wait": "standby_and_disk"}


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class StandbyDisks(counting_pairs.CountingPairs):
    def over(self, folder, listen=f"tcp://{processes.LOOPBACK}:0", **settings):
        """A daemon with its log in that folder of the test's."""
        settings.setdefault("replication", BOTH)
        durability = {"type": "log", "path": str(self.folder / folder), **settings.pop("durability", {})}
        return self.one(listen=listen, durability=durability, **settings)

    def pair_over(self, **settings):
        primary = self.over("one", **settings)
        primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        return primary, self.over("other", **settings)

    @staticmethod
    def role(daemon):
        try:
            return daemon.status()["replica_set"]["role"]
        except AssertionError:
            return "none"  # it is about to restart

    def until_a_primary(self, daemons):
        """Returns the one that has become primary."""
        return processes.until("one of them is the primary", lambda: next((each for each in daemons if self.role(each) == "primary"), None))

    def both_die(self, primary, standby):
        primary.until_in_sync()
        if self.trainers:
            self.until_more("before both die", 20)
        for daemon in (standby, primary):
            daemon.signal(signal.SIGSTOP)  # so that neither outlives the other by as much as a role change
        for daemon in (standby, primary):
            daemon.kill()

    def test_faults_in_a_random_order_lose_nothing(self):
        """One dies, or both, at once or one after the other, or with a disk; or the primary is stopped for a while."""
        random = self.random()
        daemons = dict(zip(FOLDERS, self.pair_over()))
        addresses = {folder: daemon.address for folder, daemon in daemons.items()}
        for rank in range(2):
            self.counting(daemons.values(), rank, 2)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            primary = self.until_a_primary(daemons.values())
            primary.until_in_sync()
            self.until_more("before a fault", random.randint(1, 60))
            places = sorted(FOLDERS, key=lambda folder: daemons[folder] is not primary)
            fault = random.choice(("the primary stands still", "both at once", "both at once", "one after the other"))
            if fault == "the primary stands still":
                primary.signal(signal.SIGSTOP)
                self.until_a_primary([daemons[places[1]]])
                primary.signal(signal.SIGCONT)
                continue
            if fault == "both at once":
                for place in reversed(places):
                    daemons[place].signal(signal.SIGSTOP)
                for place in places:
                    daemons[place].kill()
                if random.random() < 0.6:
                    shutil.rmtree(self.folder / random.choice(places))
            else:
                random.shuffle(places)
                places = places[:random.randint(1, 2)]
                for place in places:
                    daemons[place].kill()
            random.shuffle(places)
            for place in places:
                daemons[place] = self.over(place, listen=addresses[place])
        primary = self.until_a_primary(daemons.values())
        primary.until_in_sync()
        self.check_counts(primary)

    def random(self):
        seed = int(os.environ.get("FAULT_DISKS_SEED", time.time_ns()))
        print(f"FAULT_DISKS_SEED={seed}", file=sys.stderr)
        return random.Random(seed)

    def test_both_die_and_both_are_started(self):
        primary, standby = self.pair_over()
        for rank in range(2):
            self.counting((primary, standby), rank, 2)
        self.both_die(primary, standby)
        again = [self.over("other", listen=standby.address), self.over("one", listen=primary.address)]
        primary = self.until_a_primary(again)
        primary.until_in_sync()
        self.check_counts(primary)

    def either_disk_is_complete(self, left, lost):
        """Both die, and one of the disks with them."""
        daemons = dict(zip(FOLDERS, self.pair_over()))
        for rank in range(2):
            self.counting(daemons.values(), rank, 2)
        self.both_die(*daemons.values())
        shutil.rmtree(self.folder / lost)
        alone = self.over(left, listen=daemons[left].address)
        self.until_primary(alone, 2)
        self.over(lost, listen=daemons[lost].address)
        alone.until_in_sync()
        self.check_counts(alone)

    def test_the_primarys_disk_alone(self):
        self.either_disk_is_complete("one", "other")

    def test_the_standbys_disk_alone(self):
        self.either_disk_is_complete("other", "one")

    def test_checkpoints_of_the_standby_shorten_its_log(self):
        """Its log continues from checkpoints that it takes while it follows."""
        settings = {"durability": {"every_updates": 50, "keep": 1}, "policy": "sync"}
        primary, standby = self.pair_over(**settings)
        for rank in range(2):
            self.counting((primary, standby), rank, 2, inflight=0)
        primary.until_in_sync()
        began = standby.status()["durability"]["checkpoints"]
        standby.until_status("it has taken more checkpoints", lambda status: status["durability"]["checkpoints"] > began + 1)
        self.both_die(primary, standby)
        shutil.rmtree(self.folder / "one")
        alone = self.over("other", listen=standby.address, **settings)
        self.until_primary(alone, 2)
        self.end_trainers()
        rounds = {shard["version"] for shard in alone.status()["shards"]}
        self.assertEqual(self.values(alone), {float(each) for each in rounds})
        self.assertGreaterEqual(min(rounds), max(self.answered_by_trainer()))

    @unittest.skipUnless(processes.TRAINER, "psd-trainer is not built")
    def test_assigned_samples_are_trained_once(self):
        samples, batch = 16_000, 32
        primary, standby = self.pair_over()
        trainer = self.train(f"{primary.address},{standby.address}", data=f"synthetic:{samples}",
                             more=("--data-plan", "dynamic", "--batch-size", batch))
        primary.until_in_sync()
        primary.until_status("it trains", lambda status: status["trainers"] and status["trainers"][0]["step"] > 100)
        self.both_die(primary, standby)
        shutil.rmtree(self.folder / "one")
        alone = self.over("other", listen=standby.address)
        self.assert_ends(trainer)
        status = alone.status()
        self.assertEqual((status["replica_set"]["term"], status["samples"]["done"]), (2, samples))
        self.assertEqual({shard["version"] for shard in status["shards"]}, {samples // batch})

    @unittest.skipUnless(processes.TRAINER, "psd-trainer is not built")
    def test_rows_are_the_same_bits_on_the_standbys_disk(self):
        """Including tables that admit and evict rows."""
        tables = [{"match": ["*"], "admit": {"after_pushes": 2}, "max_rows": 200, "evict": {"by": "least_recent"}}]
        settings = {"tables": tables, "row_shards": 2, "optimizer": '{"type":"adagrad","lr":0.05}'}
        primary, standby = self.pair_over(**settings)
        trainer = self.train(f"{primary.address},{standby.address}", model="mf:dim=4", steps=400,
                             data="ratings:samples=20000,users=500,items=300")
        primary.until_in_sync()
        self.assert_ends(trainer)
        self.assertGreater(sum(table["evicted_rows"] for table in primary.status()["tables"]), 0)
        rows = self.tables(primary)
        self.both_die(primary, standby)
        shutil.rmtree(self.folder / "one")
        alone = self.over("other", listen=standby.address, **settings)
        self.until_primary(alone, 2)
        self.assertEqual(self.tables(alone), rows)

    def test_one_that_was_removed_waits(self):
        """The cluster document no longer names it: the primary may have answered pushes that it lacks."""
        primary, standby = self.pair_over()
        self.counting((primary, standby))
        primary.until_in_sync()
        standby.kill()
        self.until_without_standby(primary)
        self.until_more("by the primary alone", 20)
        primary.kill()
        removed = self.over("other", listen=standby.address)
        removed.until_status("it waits", lambda status: status["replica_set"]["waits"])
        self.over("one", listen=primary.address)
        removed.until_status("the other one continues", lambda status: status["replica_set"]["term"] == 2
                             and status["replica_set"]["role"] == "standby")
        self.end_trainers()

    def test_a_daemon_started_again_beside_its_primary_stays_the_standby(self):
        primary, standby = self.pair_over()
        self.counting((primary, standby))
        for _ in range(2):
            primary.until_in_sync()
            standby.kill()
            standby = self.over("other", listen=standby.address)
        status = primary.until_in_sync()
        self.assertEqual((status["replica_set"]["role"], status["replica_set"]["term"]), ("primary", 1))
        self.check_counts(primary)

    def machine(self, folder):
        """A machine whose disk fails on request."""
        machine = faulty_machine.Machine(self.folder / f"control-{folder}", self.folder / folder)
        self.addCleanup(machine.close)
        return machine

    @unittest.skipUnless(faulty_machine.PRELOAD, "what lets a disk fail is not built")
    def test_pushes_wait_for_the_primarys_disk(self):
        machine = self.machine("one")
        primary = self.over("one", environment=machine.environment)
        primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        standby = self.over("other")
        self.counting((primary, standby))
        for mended in (True, False):
            primary.until_in_sync()
            self.until_more("before the disk fails", 20)
            machine.fail(faulty_machine.EVERYTHING, 0, faulty_machine.FOREVER, errno.ENOSPC, 0)
            primary.until_status("its log is broken", lambda status: status["durability"]["log"]["error"])
            answered = self.answered()
            failures = primary.status()["durability"]["checkpoint_failures"]
            primary.until_status("it is tried in vain to mend it", lambda status: status["durability"]["checkpoint_failures"] > failures)
            self.assertLessEqual(self.answered(), answered + 2)  # those that were on the disk already
            if mended:
                machine.repair_disk()
                self.until_more("when the disk is mended", 20)
        primary.kill()
        self.until_primary(standby, 2)
        self.check_counts(standby)

    @unittest.skipUnless(faulty_machine.PRELOAD, "what lets a disk fail is not built")
    def test_a_standby_whose_disk_fails_is_left_out(self):
        machine = self.machine("other")
        primary = self.over("one")
        primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        standby = self.over("other", environment=machine.environment)
        self.counting((primary, standby))
        primary.until_in_sync()
        machine.fail(faulty_machine.APPENDING, 0, faulty_machine.FOREVER, errno.ENOSPC, 0)
        self.until_without_standby(primary)
        self.until_more("by the primary alone", 20)
        standby.until_status("it says why", lambda status: "cannot save the model on its disk" in status["replica_set"]["waits"])
        machine.repair_disk()
        primary.until_in_sync()
        self.check_counts(primary)

    def test_a_standby_without_its_disk_is_none(self):
        primary = self.over("one")
        self.counting((primary,))
        other = self.over("other", replication={})
        refusal = 'replication.wait is "standby_and_disk" at the primary'
        other.until_status("it gets the reason", lambda status: refusal in status["replica_set"]["waits"])
        self.assertEqual(primary.status()["replica_set"]["standby"], "")
        self.check_counts(primary)

    def test_without_a_log_it_is_refused(self):
        config = {"engine": {"endpoints": [self.etcd.endpoint], "prefix": "/psd/test"}, "policy": {"type": "locked"}, "replication": BOTH,
                  "durability": {"type": "checkpoint", "path": str(self.folder / "saved")}}
        path = self.folder / "refused.json"
        path.write_text(json.dumps(config))
        done = self.psd("--config", path)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("replication.wait", done.stderr)
        self.assertIn("requires durability.type log, not checkpoint", done.stderr)


if __name__ == "__main__":
    processes.main()
