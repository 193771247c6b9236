#!/usr/bin/env python3
"""Two daemons serve one model, each with a standby, with a real etcd: primaries are killed and stopped, the lead's among them.

Every gradient is -1 and the rate 1, so each parameter counts the pushes that are in it; each trainer writes a line for each push that
was answered.
"""

import os
import signal
import subprocess
import unittest

import etcd
import processes

COUNTING_TRAINER = os.environ["COUNTING_TRAINER_BIN"]
FAULTS = int(os.environ.get("FAULT_PAIRS_FAULTS", 4))
SGD = '{"type":"sgd","lr":1}'


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class SeveralPairs(processes.ProcessTest):
    def setUp(self):
        self.etcd = etcd.Etcd(self)
        self.addresses = [[self.unix_address(f"{pair}{place}.sock") for place in "ab"] for pair in range(2)]
        self.ledgers = []

    def one(self, pair, address, policy="locked", **settings):
        engine = {"type": "etcd", "endpoints": [self.etcd.endpoint], "prefix": f"/psd/test/{pair}"}
        return self.daemon(listen=(address,), policy=policy, optimizer=SGD, engine=engine, daemons=[",".join(of) for of in self.addresses],
                           index=pair, **settings)

    def pairs(self, **settings):
        """By partition, the primary and its standby."""
        found = []
        for pair, (first, second) in enumerate(self.addresses):
            primary = self.one(pair, first, **settings)
            primary.until_status("it is the primary", lambda status: status["group"]["role"] == "primary")
            found.append([primary, self.one(pair, second, **settings)])
        return found

    def count(self, rank, world_size, pushes, inflight=2):
        ledger = self.folder / f"ledger-{rank}"
        ledger.touch()
        self.ledgers.append(ledger)
        trainer = processes.Process(self.folder, self._name("trainer"),
                                    [COUNTING_TRAINER, self.addresses[1][0], rank, world_size, pushes, inflight, ledger, "cpu", 1 << 18])
        self.processes.append(trainer)
        return trainer

    def answered(self):
        return sum(ledger.stat().st_size // 2 for ledger in self.ledgers)

    def until_more(self, what, count=20):
        goal = self.answered() + count
        processes.until(f"{count} more pushes are answered {what}", lambda: self.answered() >= goal)

    def check(self, inflight, wanted, **settings):
        """`wanted`: the values that there may be, of the status of both primaries."""
        pairs = self.pairs(**settings)
        trainers = [self.count(rank, 2, 300 * FAULTS, inflight) for rank in range(2)]
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
            standby.until_status("it has taken over", lambda status: status["group"]["role"] == "primary")
            self.until_more("by its standby")
            if kills:
                primary = self.one(fault % 2, primary.address, **settings)
            else:
                primary.signal(signal.SIGCONT)
            pair[:] = [standby, primary]
        for trainer in trainers:
            self.assert_ends(trainer)
        path = self.folder / "model.safetensors"
        for pair in pairs:
            pair[0].until_in_sync()
        done = subprocess.run([processes.PSD, "export", "--server", pairs[0][0].address, "--to", path], capture_output=True, text=True,
                              timeout=processes.WAIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(processes.all_values(path), wanted([pair[0].status() for pair in pairs]))
        self.assertEqual(self.answered(), 600 * FAULTS)
        stopped = subprocess.run([processes.PSD, "stop", "--server", pairs[1][0].address], capture_output=True, text=True,
                                 timeout=processes.WAIT_S, check=False)
        self.assertEqual(stopped.returncode, 0, stopped.stderr)
        for daemon in [one for pair in pairs for one in pair]:
            self.assert_ends(daemon)

    def test_faults_of_primaries_lose_nothing(self):
        self.check(2, lambda _: {float(self.answered())})

    def test_rounds_go_on(self):
        rounds = lambda statuses: {float(shard["version"]) for status in statuses for shard in status["shards"]}
        # Each round counts once. Right after a take-over a round may be of who was back first.
        self.check(0, rounds, policy="sync", policy__start_trainers=2, policy__round_timeout_ms=2_000)


if __name__ == "__main__":
    processes.main()
