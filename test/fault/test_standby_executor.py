"""Trainers of an executor whose daemon is killed repeatedly, and whose standby takes over: each step counts once."""

import os
import unittest

import counting_pairs
import etcd
import processes

EXECUTOR = os.environ["PSD_EXECUTOR_BIN"]
KILLS = 2
STEPS = 150


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class StandbyExecutor(counting_pairs.CountingPairs):
    def steps_of(self, status):
        return [each["step"] for each in status["trainers"]]

    def test_each_step_counts_once(self):
        primary, standby = self.pair(optimizer='{"type":"sgd","lr":0.1}')
        address = self.unix_address("executor.sock")
        executor = processes.Process(self.folder, "psd-executor", [
            EXECUTOR, "--server", f"{primary.address},{standby.address}", "--listen", address, "--module", "mlp", "--device", "cpu"])
        self.processes.append(executor)
        trainers = [self.start_trainer("train", "--execute", address, "--rank", rank, "--world-size", 2, "--data", "synthetic:512",
                                       "--steps", STEPS) for rank in range(2)]
        for kill in range(KILLS):
            primary.until_in_sync()
            goal = 20 * (kill + 1)
            primary.until_status("both train", lambda status, goal=goal: len(status["trainers"]) == 2
                                 and min(self.steps_of(status)) >= goal)
            primary.kill()
            self.until_primary(standby, kill + 2)
            primary, standby = standby, self.restarted(primary, optimizer='{"type":"sgd","lr":0.1}')
        for trainer in trainers:
            self.assert_ends(trainer)
            self.assertIn("back after", trainer.err)
        self.assertTrue(executor.runs())
        status = primary.until_status("both have left", lambda status: not status["trainers"])
        versions = {shard["version"] for shard in status["shards"]}
        # A step of which one part had arrived when the primary died is late in the shards that lack it: it is made of
        # another gradient.
        self.assertLessEqual(max(versions), 2 * STEPS)
        self.assertGreaterEqual(min(versions), 2 * (STEPS - KILLS))


if __name__ == "__main__":
    processes.main()
