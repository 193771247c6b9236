"""DiLoCo learners at a primary and its standby, which are killed one after the other: without rounds, and in fragments."""

import re
import unittest

import counting_pairs
import etcd
import processes

KILLS = 3
INNER = {"type": "adamw", "lr": 0.003}
DELAYED = '{"type":"delayed_nesterov","lr":0.7,"momentum":0.9,"delay":2}'
NESTEROV = '{"type":"sgd","lr":0.7,"momentum":0.9,"nesterov":true}'


def versions(status):
    return sorted({shard["version"] for shard in status["shards"]})


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class StandbyLearners(counting_pairs.CountingPairs):
    def test_without_rounds_each_push_counts_once(self):
        settings = {"policy": "async_diloco", "policy__period": 5}
        primary, standby = self.pair(**settings)
        for rank in range(2):
            self.counting((primary, standby), rank, 2)
        self.check_counts(self.killed_repeatedly(primary, standby, KILLS, **settings))

    def trained(self, learners, steps, **settings):
        """The last daemon's status after the learners have ended; its primaries were killed repeatedly."""
        primary, standby = self.pair(**settings)
        addresses = f"{primary.address},{standby.address}"
        trainers = [self.train(addresses, rank, learners, data="synthetic:3200", steps=steps, more=("--retry-timeout", 60))
                    for rank in range(learners)]
        for kill in range(KILLS):
            goal = versions(primary.until_in_sync())[-1] + 4
            answered = versions(primary.until_status("learners continue", lambda status, goal=goal: versions(status)[-1] >= goal))
            primary.kill()
            self.until_primary(standby, kill + 2)
            self.assertGreaterEqual(versions(standby.status())[-1], answered[-1])
            primary, standby = standby, self.restarted(primary, **settings)
        for trainer in trainers:
            self.assert_ends(trainer)
        accuracy = float(re.search(r"test .*accuracy ([0-9.]+) %", trainers[0].out).group(1))
        self.assertGreater(accuracy, 80, "a guess is right in 10 %")
        return primary.until_status("all have left", lambda status: not status["trainers"])

    def test_without_rounds_momentum_and_arrivals_continue(self):
        status = self.trained(2, 600, policy="async_diloco", optimizer=DELAYED, policy__period=5, policy__inner=INNER)
        self.assertEqual(versions(status), [2 * 600 // 5])

    def test_each_round_of_a_fragment_counts_once(self):
        status = self.trained(2, 360, policy="diloco", optimizer=NESTEROV, policy__period=6, policy__quorum=2, policy__fragments=3,
                              policy__delay=1, policy__inner=INNER)
        # A round of each fragment in each period, and at the end the rest of those that were not just pushed.
        self.assertEqual(versions(status), [60, 61])

    def test_differences_continue_at_the_standby(self):
        status = self.trained(2, 360, policy="diloco", optimizer=NESTEROV, policy__period=6, policy__quorum=2, policy__fragments=3,
                              policy__deltas="e3m0", policy__inner=INNER)
        self.assertEqual(versions(status), [60, 61])


if __name__ == "__main__":
    processes.main()
