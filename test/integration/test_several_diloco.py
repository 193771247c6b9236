"""Learners under policy diloco in fragments, at two daemons that serve the model together: daemons that are killed,
learners that are killed or late, pulls in differences."""

import collections
import re
import shutil
import signal

import processes

INNER = {"type": "adamw", "lr": 0.003}
OUTER = '{"type":"sgd","lr":0.7,"momentum":0.9,"nesterov":true}'
# For the model `mlp`, whose first weight is cut: fragment 0 is on both daemons, the others on the second only.
FRAGMENTS = (("fragment 0",), ("fragment 0", "fragment 1", "fragment 2"))


def closed(status):
    return {each["group"]: each["closed"] for each in status["rounds"]}


def version(status, fragment="fragment 2"):
    return max((shard["version"] for shard in status["shards"] if shard["group"] == fragment), default=0)


class SeveralDiLoCo(processes.ProcessTest):
    def several(self, folder="saved", **options):
        """Two daemons under the policy with these options."""
        self.addresses = [self.unix_address(f"{folder}-{i}.sock") for i in range(2)]
        self.settings = {"policy": "diloco", "optimizer": OUTER, "policy__inner": INNER, "policy__fragments": 3,
                         **{key if "__" in key else f"policy__{key}": value for key, value in {"round_timeout_ms": 600_000, **options}.items()}}
        self.saved = [self.folder / f"{folder}-{i}" for i in range(2)]
        return [self.one(i) for i in range(2)]

    def one(self, index):
        durability = {"type": "log", "path": str(self.saved[index]), "every_seconds": 3600}
        return self.daemon(listen=(self.addresses[index],), daemons=self.addresses, index=index, durability=durability,
                           save=f"{self.saved[index]}.safetensors", **self.settings)

    def learners(self, count, steps, ranks=None):
        return [self.train(self.addresses[rank % 2], rank, count, data="synthetic:3200", steps=steps, more=("--retry-timeout", 60))
                for rank in ranks or range(count)]

    def assert_learned(self, trainers):
        for trainer in trainers:
            self.assert_ends(trainer)
        accuracy = float(re.search(r"test .*accuracy ([0-9.]+) %", trainers[0].out).group(1))
        self.assertGreater(accuracy, 80, "a guess is right in 10 %")

    def until_all_close(self, daemons, ranks, more=2):
        """Until each fragment of each daemon has had rounds, the newest of which has exactly these ranks."""
        for daemon in daemons:
            before = collections.Counter(closed(daemon.status()))
            daemon.until_status(f"ranks {ranks} are in a round of each fragment", lambda status, before=before: status["rounds"] and all(
                each["closed"] >= before[each["group"]] + more and each["in"] == ranks for each in status["rounds"]))

    def saved_logs(self):
        return [processes.safetensors(folder.with_name(f"{folder.name}.safetensors")) for folder in self.saved]

    def left_out(self, daemons):
        return [daemon.counter("left_out") for daemon in daemons]

    def test_fragments_have_rounds_in_each_daemon_that_has_a_part(self):
        daemons = self.several(period=9, start_trainers=3, delay=1, blend=0.5)
        trainers = self.learners(3, steps=90)
        self.assert_learned(trainers)
        self.assertIn("on 2 daemons", trainers[0].err)
        for daemon, fragments in zip(daemons, FRAGMENTS):
            status = daemon.until_status("all have left", lambda status: not status["trainers"])
            # A slot of each fragment every nine steps; the last of them is in fragment 2, and the others push the rest.
            self.assertEqual(closed(status), {name: {"fragment 2": 10}.get(name, 11) for name in fragments})
            self.assertEqual({shard["group"] for shard in status["shards"]}, set(fragments))
            self.assertEqual(status["counters"]["gradients"], 3 * sum(closed(status).values()))
            self.assertEqual((status["counters"]["late_pushes"], status["counters"]["left_out"]), (0, 0))
        self.assert_ends(self.start_psd("set", "optimizer.lr=0.5", "--server", self.addresses[0]))
        for daemon in daemons:
            self.assertIn("lr=0.5", daemon.status()["optimizer"])
        table = self.start_psd("status", "--server", self.addresses[0])
        self.assert_ends(table)
        shards = re.findall(r"\n +\d+ +\d+ +(\d+) +cpu +(fragment \d)(?=\n)", table.out)
        self.assertEqual(sorted(set(shards)), [("10", "fragment 2"), ("11", "fragment 0"), ("11", "fragment 1")], table.out)

    def test_learners_die_and_come_late_where_rounds_wait_for_all(self):
        # A learner that has joined one daemon and not yet the other may delay one round, but not the following ones.
        daemons = self.several(period=6, round_timeout_ms=4000)
        self.learners(2, 10_000_000, ranks=[0])
        self.until_all_close(daemons, [0])
        for _ in range(3):
            late, = self.learners(2, 10_000_000, ranks=[1])
            self.until_all_close(daemons, [0, 1])
            before = self.left_out(daemons)
            self.until_all_close(daemons, [0, 1], more=15)
            self.assertEqual(self.left_out(daemons), before)
            late.kill()
            self.until_all_close(daemons, [0])

    def test_a_stopped_learner_is_left_out_and_rejoins(self):
        daemons = self.several(period=6, quorum=1, grace_ms=150, start_trainers=2, delay=1)
        learners = self.learners(2, 10_000_000)
        self.until_all_close(daemons, [0, 1])
        learners[1].signal(signal.SIGSTOP)
        self.until_all_close(daemons, [0])
        learners[1].signal(signal.SIGCONT)
        self.until_all_close(daemons, [0, 1])
        learners[0].kill()
        self.until_all_close(daemons, [1])
        self.learners(2, 10_000_000, ranks=[0])
        self.until_all_close(daemons, [0, 1])

    def test_no_answered_round_of_a_fragment_is_lost_with_a_daemon(self):
        daemons, learners, steps = self.several(period=6, quorum=2, delay=1, blend=0.25), 2, 120
        trainers = self.learners(learners, steps)
        for after, index in ((3, 0), (7, 1), (11, 0), (11, 1)):
            daemons[1].until_status("some rounds have closed", lambda status, after=after: version(status) >= after)
            daemons[index].kill()
            daemons[index] = self.one(index)
        self.assert_learned(trainers)
        for daemon, folder in zip(daemons, self.saved):
            status = daemon.until_status("all have left", lambda status: not status["trainers"])
            # One update for each round: twenty, and at the end one of the fragments that were not just pushed.
            self.assertLessEqual({shard["version"] for shard in status["shards"]}, {20, 21})
            self.assert_stops(daemon)
            times = collections.Counter((update.shard, rank, step) for update in processes.read_log(folder) for rank, _, step in update.pushes)
            self.assertEqual(set(times.values()), {1})
            self.assertEqual(len(times), learners * sum(shard["version"] for shard in status["shards"]))
        # A replay of the logs gives the same bits.
        ends = self.saved_logs()
        self.saved = [shutil.copytree(folder, folder.with_name(f"{folder.name}-copy")) for folder in self.saved]
        for daemon in [self.one(i) for i in range(2)]:
            self.assert_stops(daemon)
        self.assertEqual(self.saved_logs(), ends)

    def test_few_bits_both_ways_continue_with_the_next_daemon(self):
        daemons = self.several(period=6, quorum=2, deltas="e3m0", codecs__push__default="e3m0")
        trainers = self.learners(2, 120)
        for index in range(2):
            daemons[1].until_status("some rounds have closed", lambda status, after=5 * (index + 1): version(status) >= after)
            daemons[index].kill()
            daemons[index] = self.one(index)
        self.assert_learned(trainers)
        self.assertIn("of pulls deltas in e3m0", trainers[0].err)
        for daemon in daemons:
            counters = daemon.status()["counters"]
            self.assertLess(counters["push_bytes"], 0.2 * counters["push_value_bytes"])
            self.assertLess(counters["pull_bytes"], 0.4 * counters["pull_value_bytes"])

    def test_another_number_of_daemons_resumes_from_the_saved_state(self):
        daemons = self.several(period=6)
        self.assert_learned(self.learners(1, 60))
        for daemon in daemons:
            self.assert_stops(daemon)
        next_ = self.folder / "next"
        self.assert_ends(self.start_psd("repartition", *self.saved, "--daemons", 3, "--to", next_))
        self.addresses = [self.unix_address(f"next-{i}.sock") for i in range(3)]
        self.saved = [next_ / f"partition-{i}" for i in range(3)]
        daemons = [self.one(i) for i in range(3)]
        self.assertEqual([sorted(closed(daemon.status())) for daemon in daemons],
                         [["fragment 0"], ["fragment 0"], ["fragment 0", "fragment 1", "fragment 2"]])
        self.assert_learned(self.learners(1, 60))
        for daemon in daemons:
            self.assertEqual({shard["version"] for shard in daemon.status()["shards"]} - {21, 22}, set())

    def test_what_does_not_go_is_refused(self):
        flags = [part for key, value in (
            ("daemons", '["unix:///a", "unix:///b"]'), ("index", 0), ("policy.type", "diloco"), ("policy.fragments", 2), ("policy.round_timeout_ms", 1000),
            ("optimizer", OUTER)) for part in ("--set", f"{key}={value}")]
        complaint = 'must be "log" or "checkpoint" with fragments and several daemons'
        self.assert_fails(self.start_psd("--listen", self.unix_address(), *flags), "durability.type", complaint)
        self.assert_fails(self.start_psd("--listen", self.unix_address(), *flags, "--set", "policy.aggregator.type=rda"),
                          "daemons: each has a part of a gradient alone", "aggregator rda compares whole tensors")


if __name__ == "__main__":
    processes.main()
