"""Two or three daemons serve one model, each with a standby, with a real etcd: primaries, including the lead's, are
killed and stopped.

FAULT_PAIRS_SECONDS makes it a soak of three pairs (600, for example); FAULT_PAIRS_SEED sets the order.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import time
import unittest
import urllib.request

import counting
import etcd
import processes
from counting_pairs import PATIENT

PROMTOOL = shutil.which("promtool")
FAULTS = int(os.environ.get("FAULT_PAIRS_FAULTS", "4"))
SEED = int(os.environ.get("FAULT_PAIRS_SEED", "1"))
LONGEST_JOIN_S = 0.06
SECONDS = float(os.environ.get("FAULT_PAIRS_SECONDS", "0"))
# Faults of a soak, shuffled again once each has occurred.
SOAK_FAULTS = ("kill", "freeze", "switch", "kill standby", "without etcd", "kill without etcd")


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class SeveralPairs(counting.CountingTest):
    def setUp(self):
        super().setUp()
        self.etcd = etcd.Etcd(self)
        self.place(2)

    def place(self, pairs):
        """Sets the number of pairs."""
        self.addresses = [[self.unix_address(f"{pair}{place}.sock") for place in "ab"] for pair in range(pairs)]

    def one(self, pair, address, policy="locked", **settings):
        engine = {"type": "etcd", "endpoints": [self.etcd.endpoint], "prefix": f"/psd/test/{pair}"}
        return self.daemon(listen=(address,), policy=policy, optimizer=counting.SGD, engine=engine, replication=PATIENT, index=pair,
                           daemons=[",".join(of) for of in self.addresses], **settings)

    def pairs(self, **settings):
        """By partition: the primary and its standby."""
        found = []
        for pair, (first, second) in enumerate(self.addresses):
            primary = self.one(pair, first, **settings)
            primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
            found.append([primary, self.one(pair, second, **settings)])
        return found

    def check(self, inflight, check, **settings):
        """`check` checks the model; it receives both primaries."""
        pairs = self.pairs(**settings)
        for rank in range(2):
            self.count(self.addresses[1][0], rank, 2, inflight=inflight)
        for fault in range(FAULTS):
            pair = pairs[fault % 2]
            primary, standby = pair
            primary.until_in_sync()
            self.until_more("before the fault")
            kills = fault // 2 % 2 == 0
            if kills:
                primary.kill()
            else:
                primary.signal(signal.SIGSTOP)
            self.until_taken_over(standby)
            self.until_more("by its standby")
            if kills:
                primary = self.one(fault % 2, primary.address, **settings)
            else:
                primary.signal(signal.SIGCONT)
            pair[:] = [standby, primary]
        self.end_trainers()
        for pair in pairs:
            pair[0].until_in_sync()
        check([pair[0] for pair in pairs])
        stopped = self.psd("stop", "--discard", "--server", pairs[1][0].address)
        self.assertEqual(stopped.returncode, 0, stopped.stderr)
        for daemon in [one for pair in pairs for one in pair]:
            self.assert_ends(daemon)

    def disturb(self, fault, number, pair):
        """One fault of a pair [primary, standby], whose entries it swaps if the roles change."""
        primary, standby = pair
        if "without etcd" in fault:
            self.etcd.kill()
            self.until_more("without etcd")
        if "kill" in fault:
            (standby if fault == "kill standby" else primary).kill()
        if fault == "freeze":
            primary.signal(signal.SIGSTOP)
        if fault == "switch":
            primary.switch_over()
        if "without etcd" in fault:
            self.assertTrue(self.etcd.start())
        if fault == "kill standby":
            self.until_more("by a primary alone")
            pair[1] = self.one(number, standby.address)
        elif fault != "without etcd":
            self.until_taken_over(standby)
            self.until_more("by a standby")
            if fault == "freeze":
                primary.signal(signal.SIGCONT)
            pair[:] = standby, self.one(number, primary.address) if "kill" in fault else primary

    def test_three_pairs_lose_nothing_by_faults_in_a_random_order(self):
        order = random.Random(SEED)
        self.place(3)
        pairs = self.pairs()
        for rank in range(2):
            self.count(self.addresses[rank][0], rank, 2, chunk_bytes=1 << 12)
        end = time.monotonic() + SECONDS
        happened = []
        while not happened or time.monotonic() < end:
            for fault in order.sample(SOAK_FAULTS, len(SOAK_FAULTS)):
                for primary, _ in pairs:
                    primary.until_in_sync()
                self.until_more("before the fault")
                number = order.randrange(len(pairs))
                happened.append((fault, number))
                print(f"FAULT_PAIRS_SEED={SEED}, fault {len(happened)}: {fault}, pair {number}", flush=True)
                self.disturb(fault, number, pairs[number])
        self.end_trainers()
        print(f"{len(happened)} faults, {self.answered()} pushes answered, epochs to {max(self.epochs())}")
        self.check_model(pairs[0][0].address, happened)

    def test_faults_of_primaries_lose_nothing(self):
        self.check(2, lambda primaries: self.check_model(primaries[0].address))

    def test_rounds_continue(self):
        def check_rounds(primaries):
            # Each round counts once. Right after a takeover a round may have only the trainers that reconnected first.
            rounds = {float(shard["version"]) for primary in primaries for shard in primary.status()["shards"]}
            self.assertEqual(self.values(primaries[0]), rounds)

        self.check(0, check_rounds, policy="sync", policy__start_trainers=2, policy__round_timeout_ms=2_000)

    def divided(self, *folders, to):
        return self.start_psd("repartition", "--whole", *folders, "--daemons", 1, "--to", self.folder / to)

    def saved(self, pair, place, **more):
        """Settings of a daemon that takes checkpoints on request, in a folder of its own."""
        return {"durability": {"type": "checkpoint", "path": str(self.folder / f"saved-{pair}{place}"), "every_seconds": 0}, **more}

    def checkpoint(self):
        """A checkpoint of the whole model, requested from the last daemon; returns the values that it has, while
        trainers wait."""
        for trainer, _ in self.trainers:
            trainer.signal(signal.SIGSTOP)
        done = self.psd("checkpoint", "--server", self.addresses[1][0])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("these are a checkpoint of the whole model: ", done.stdout)
        values = self.values(self.primaries[1])
        for trainer, _ in self.trainers:
            trainer.signal(signal.SIGCONT)
        return values

    def test_checkpoints_of_the_whole_continue_after_the_lead_has_died(self):
        daemons = {}
        for pair, place in ((0, "a"), (0, "b"), (1, "a"), (1, "b")):
            daemons[pair, place] = self.one(pair, self.addresses[pair]["ab".index(place)], **self.saved(pair, place))
            if place == "a":
                daemons[pair, place].until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        self.count(self.addresses[1][0])
        self.primaries = [daemons[0, "a"], daemons[1, "a"]]
        for primary in self.primaries:
            primary.until_in_sync()
        self.until_more("at first")
        before = self.checkpoint()
        self.until_more("before the lead dies")
        self.primaries[0].kill()
        self.primaries[0] = daemons[0, "b"]
        self.until_taken_over(self.primaries[0])
        self.until_more("by its standby")
        new_lead, other = self.folder / "saved-0b", self.folder / "saved-1a"
        # The new lead's folder names none yet.
        self.primaries[0].until_status("it has a checkpoint", lambda status: status["durability"]["checkpoints"] > 0)
        self.assertFalse((new_lead / "whole.json").exists())
        again = self.one(0, self.addresses[0][0], **self.saved(0, "a"))
        self.primaries[0].until_in_sync()
        after = self.checkpoint()
        self.assertNotEqual(before, after)
        self.until_more("after the checkpoint")
        for process in [*(trainer for trainer, _ in self.trainers), *daemons.values(), again]:
            process.kill()
        self.assert_ends(self.divided(new_lead, other, to="next"))
        exported = self.psd("export", self.folder / "next" / "partition-0", "--to", self.folder / "whole.safetensors")
        self.assertEqual(exported.returncode, 0, exported.stderr)
        self.assertEqual(processes.all_values(self.folder / "whole.safetensors"), after)
        # A daemon resumes from it.
        alone = self.daemon(listen=(self.unix_address("alone.sock"),), policy="locked", optimizer=counting.SGD,
                            durability={"type": "checkpoint", "path": str(self.folder / "next" / "partition-0")})
        self.assertEqual(self.values(alone), after)

    def until_ranks(self, pairs, ranks):
        for pair in pairs:
            pair[0].until_status(f"the ranks {ranks} are in", lambda status: [each["rank"] for each in status["trainers"]] == ranks)

    def test_the_lead_dies_while_a_trainer_joins(self):
        """The lead dies at a random moment of a join, every second time the trainer as well: no rank stays joined at
        only one of the daemons."""
        self.gradients = "ones"
        moments = random.Random(SEED)
        pairs = self.pairs(world_size={"min": 1, "max": 2}, membership__grace_ms=500)
        self.count(self.addresses[1][0], 0, 2)
        self.until_more("at first")
        for fault in range(FAULTS):
            lead = pairs[0]
            for pair in pairs:
                pair[0].until_in_sync()
            joins = self.count(self.addresses[1][0], 1, 2, pushes=20)
            time.sleep(moments.uniform(0, LONGEST_JOIN_S))
            lead[0].kill()
            dies = fault % 2 == 1
            if dies:
                joins.kill()
            self.until_taken_over(lead[1])
            lead[:] = [lead[1], self.one(0, lead[0].address, world_size={"min": 1, "max": 2}, membership__grace_ms=500)]
            if not dies:
                self.assert_ends(joins)
            self.until_ranks(pairs, [0])
            self.until_more("by the one that stays")
            if dies:  # its rank is free
                self.assert_ends(self.count(self.addresses[1][0], 1, 2, pushes=20))
                self.until_ranks(pairs, [0])
        self.trainers[0][0].signal(signal.SIGTERM)
        self.assert_ends(self.trainers[0][0])
        # Pushes without an answer when the trainer was killed may be in the model.
        for value in self.values(pairs[0][0]):
            self.assertGreaterEqual(value, self.answered())
            self.assertLessEqual(value, self.answered() + 2 * (FAULTS // 2))

    def rows(self, text):
        """Rows of the overview, by address: partition, role, epoch and state of the standby."""
        rows = re.findall(r"^  (unix:\S+) +(\d) +(\w+) +(\d+) .*?\w {2,}((?:not |none )?in sync.*)$", text, re.MULTILINE)
        return {address: (int(partition), role, int(epoch), sync) for address, partition, role, epoch, sync in rows}

    def overview(self, address):
        shown = self.psd("status", "--server", address)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        return shown.stdout

    def test_any_of_them_shows_all(self):
        pairs = self.pairs(http__listen=["tcp://127.0.0.1:0"])
        self.count(self.addresses[1][0])
        for pair in pairs:
            pair[0].until_in_sync()
        for asked in [one for pair in pairs for one in pair]:
            text = self.overview(asked.address)
            rows = self.rows(text)
            for partition, (primary, standby) in enumerate(pairs):
                self.assertEqual(rows[primary.address][:3], (partition, "primary", 1), text)
                self.assertRegex(rows[primary.address][3], "^in sync, .* behind$")
                self.assertEqual(rows[standby.address][:3], (partition, "standby", 1), text)
                self.assertRegex(rows[standby.address][3], "^in sync, .* to apply$")
            self.assertNotIn("WAITS", text)
        top = self.psd("top", "--count", 1, "--server", pairs[1][1].address)
        self.assertEqual(top.returncode, 0, top.stderr)
        self.assertEqual(len(re.findall("^group +primary of term 1, standby ", top.stdout, re.MULTILINE)), 2, top.stdout)
        metrics = self.metrics(pairs[0][0])
        for partition, (primary, standby) in enumerate(pairs):
            for role, daemon in (("primary", primary), ("standby", standby)):
                labels = f'{{partition="{partition}",role="{role}",address="{daemon.address}"}}'
                self.assertIn(f"psd_daemon_up{labels} 1\n", metrics)
                self.assertIn(f"psd_daemon_term{labels} 1\n", metrics)
        if PROMTOOL:
            checked = subprocess.run([PROMTOOL, "check", "metrics"], input=metrics, capture_output=True, text=True, timeout=processes.WAIT_S, check=False)
            self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))
        for daemon in pairs[1]:
            daemon.kill()
        waits = self.one(1, pairs[1][1].address)
        waits.until_status("it waits for the dead primary", lambda status: "psd recover" in status["replica_set"]["waits"])
        text = self.overview(pairs[0][1].address)
        self.assertEqual(self.rows(text)[waits.address][:2], (1, "syncing"), text)
        self.assertRegex(text, f"WAITS: {waits.address}: .*psd recover")

    def metrics(self, daemon):
        with urllib.request.urlopen(daemon.page + "/metrics", timeout=processes.WAIT_S) as answer:
            return answer.read().decode()


if __name__ == "__main__":
    processes.main()
