"""Learners under policy diloco: rounds that close without learners that died or are stopped, which rejoin; a daemon
that is killed; a late learner. The same without rounds, under async_diloco."""

import collections
import json
import re
import shutil
import signal

import processes

INNER = {"type": "adamw", "lr": 0.003}
OUTER = '{"type":"sgd","lr":0.7,"momentum":0.9,"nesterov":true}'
DELAYED = '{"type":"delayed_nesterov","lr":0.7,"momentum":0.9,"delay":3}'


def rounds(status):
    """The rounds of the only group; none before the model is initialized."""
    return status["rounds"][0] if status["rounds"] else {"closed": 0, "in": []}


def versions(status):
    return [shard["version"] for shard in status["shards"]]


class DiLoCo(processes.ProcessTest):
    def diloco(self, *arguments, period=5, inner=INNER, optimizer=OUTER, **options):
        """A daemon under the policy. Options are the policy's; those with "__" are keys of the configuration."""
        keys = {key if "__" in key or key in ("policy", "durability", "save") else f"policy__{key}": value for key, value in options.items()}
        return self.daemon(*arguments, **{"policy": "diloco", **keys}, optimizer=optimizer, shards=3, policy__period=period,
                           policy__inner=inner, listen=(self.unix_address(),))

    def asynchronous(self, *arguments, **options):
        return self.diloco(*arguments, optimizer=DELAYED, policy="async_diloco", **options)

    def test_learners_learn(self):
        steps, period, learners = 100, 10, 3
        daemon = self.diloco(period=period, start_trainers=learners)
        trainers = [self.train(daemon.address, rank, learners, data="synthetic:3200", steps=steps) for rank in range(learners)]
        for trainer in trainers:
            self.assert_ends(trainer)
        status = daemon.until_status("all have left", lambda status: not status["trainers"])
        self.assertEqual({shard["version"] for shard in status["shards"]}, {steps // period})
        self.assertEqual(rounds(status)["closed"], steps // period)
        self.assertEqual(status["counters"]["left_out"], 0)
        self.assertEqual(status["counters"]["gradients"], learners * steps // period)
        self.assertIn("in trainers adamw lr=0.003", status["optimizer"])
        accuracy = float(re.search(r"test .*accuracy ([0-9.]+) %", trainers[0].out).group(1))
        self.assertGreater(accuracy, 80, "a guess is right in 10 %")

    def test_the_last_ones_end_without_a_quorum(self):
        daemon = self.diloco(period=5, quorum=3, grace_ms=100, start_trainers=3)
        trainers = [self.train(daemon.address, rank, 3, steps=steps) for rank, steps in enumerate((20, 43, 71))]
        for trainer in trainers:
            self.assert_ends(trainer)

    def until_in(self, daemon, ranks):
        """Until a round that starts after this call consists of exactly these ranks."""
        before = rounds(daemon.status())["closed"]
        return daemon.until_status(f"ranks {ranks} are in a round", lambda status:
                                   rounds(status)["closed"] > before + 1 and rounds(status)["in"] == ranks)

    def test_no_learner_waits_long_for_a_dead_or_stopped_one(self):
        daemon = self.diloco(period=4, quorum=2, grace_ms=150, start_trainers=3)
        learners = [self.train(daemon.address, rank, 3, steps=10_000_000) for rank in range(3)]
        self.until_in(daemon, [0, 1, 2])
        learners[2].signal(signal.SIGSTOP)
        status = self.until_in(daemon, [0, 1])
        self.assertEqual(len(status["trainers"]), 3, "it still counts as in")
        self.assertEqual(rounds(status)["missing"], [2])
        self.assertGreaterEqual(rounds(status)["grace_seconds"], 0.15)
        left_out = {one["rank"]: one["running"] for one in rounds(status)["left_out"]}  # with others, where processors are busy
        self.assertGreaterEqual(left_out[2], 1)
        table = self.start_psd("status", "--server", daemon.address)
        self.assert_ends(table)
        self.assertRegex(table.out, r"rounds +\d+ closed \(diloco\); last: ranks 0, 1 in .*, grace .*; left out: .*rank 2 of")
        # Its unfinished round is obsolete; then it is notified when its rounds close, and takes part again, although it
        # started in the middle of one.
        learners[2].signal(signal.SIGCONT)
        self.until_in(daemon, [0, 1, 2])
        learners[1].kill()
        status = daemon.until_status("it counts as lost", lambda status: status["trainers_lost"] == 1)
        self.until_in(daemon, [0, 2])
        self.assertTrue(learners[0].runs() and learners[2].runs())

    def test_no_answered_round_is_lost_with_the_daemon(self):
        steps, period, learners = 120, 4, 2
        saved = self.folder / "saved"
        durability = {"type": "log", "path": str(saved)}
        daemon = self.diloco(period=period, quorum=learners, durability=durability)
        trainers = [self.train(daemon.address, rank, learners, steps=steps, more=("--retry-timeout", 60))
                    for rank in range(learners)]
        for after in (5, 15):
            daemon.until_status("some rounds have closed",
                                lambda status: status["shards"] and status["shards"][0]["version"] >= after)
            daemon.kill()
            daemon = self.diloco(period=period, quorum=learners, durability=durability)
        for trainer in trainers:
            self.assert_ends(trainer)
        status = daemon.until_status("all have left", lambda status: not status["trainers"])
        self.assertEqual({shard["version"] for shard in status["shards"]}, {steps // period})
        daemon.kill()
        times = collections.Counter((update.shard, rank, step) for update in processes.read_log(saved)
                                    for rank, _, step in update.pushes)
        expected = {(shard, rank, step) for shard in range(3) for rank in range(learners)
                    for step in range(1, steps // period + 1)}
        # A checkpoint may have removed the oldest records; none occurs twice, and the newest are all there.
        self.assertEqual(set(times.values()), {1})
        self.assertLessEqual(set(times), expected)
        self.assertIn((2, 1, steps // period), times)

    def test_learners_learn_without_rounds(self):
        steps, period, learners = 100, 10, 3
        daemon = self.asynchronous(period=period, dynamic_period=True)
        trainers = [self.train(daemon.address, rank, learners, data="synthetic:3200", steps=steps) for rank in range(learners)]
        for trainer in trainers:
            self.assert_ends(trainer)
        status = daemon.until_status("all have left", lambda status: not status["trainers"])
        self.assertEqual(status["rounds"], [])
        # Each push is an update; those of slower learners have fewer steps, so there may be more.
        versions = {shard["version"] for shard in status["shards"]}
        self.assertEqual(versions, {status["counters"]["gradients"]})
        self.assertGreaterEqual(min(versions), learners * steps // period)
        self.assertIn("delayed_nesterov", status["optimizer"])
        accuracy = float(re.search(r"test .*accuracy ([0-9.]+) %", trainers[0].out).group(1))
        self.assertGreater(accuracy, 80, "a guess is right in 10 %")

    def test_no_learner_waits_without_rounds(self):
        daemon = self.asynchronous(period=4, dynamic_period=True)
        learners = [self.train(daemon.address, rank, 3, steps=10_000_000) for rank in range(3)]

        def until_more():
            before = daemon.status()["counters"]["gradients"]
            daemon.until_status("pushes continue", lambda status: status["counters"]["gradients"] > before + 5)

        daemon.until_status("all are in", lambda status: len(status["trainers"]) == 3)
        until_more()
        learners[2].signal(signal.SIGSTOP)
        until_more()
        learners[1].kill()
        daemon.until_status("it counts as lost", lambda status: status["trainers_lost"] == 1)
        until_more()
        learners[2].signal(signal.SIGCONT)
        until_more()
        self.assertTrue(learners[0].runs() and learners[2].runs())

    def train_through_kills(self, begin, steps, learners, kills):
        """Learners that finish although the daemon is killed at each version in `kills`; returns the last daemon and
        its status."""
        daemon = begin(self.folder / "saved", "unused")
        trainers = [self.train(daemon.address, rank, learners, data="synthetic:3200", steps=steps, more=("--retry-timeout", 60))
                    for rank in range(learners)]
        for after in kills:
            daemon.until_status("some pushes are applied", lambda status: max(versions(status), default=0) >= after)
            daemon.kill()
            daemon = begin(self.folder / "saved", "end")
        for trainer in trainers:
            self.assert_ends(trainer)
        accuracy = float(re.search(r"test .*accuracy ([0-9.]+) %", trainers[0].out).group(1))
        self.assertGreater(accuracy, 80, "a guess is right in 10 %")
        return daemon, daemon.until_status("all have left", lambda status: not status["trainers"])

    def test_who_is_done_is_not_waited_for_by_the_next_daemon(self):
        for number, policy in enumerate((
                {"policy": "diloco", "optimizer": OUTER, "policy__period": 5, "policy__quorum": 1, "policy__grace_ms": 100},
                {"policy": "diloco", "optimizer": OUTER, "policy__period": 6, "policy__fragments": 2, "policy__delay": 1},
                {"policy": "sync"})):
            with self.subTest(policy):
                address = self.unix_address(f"{number}.sock")

                def begin():
                    return self.daemon(listen=(address,), policy__start_trainers=2, membership__grace_ms=500, **policy,
                                       durability={"type": "log", "path": str(self.folder / f"saved{number}")})

                daemon = begin()
                stays, ends = (self.train(address, rank, 2, data="synthetic:3200", steps=steps, more=("--retry-timeout", 60))
                               for rank, steps in ((0, 400), (1, 40)))
                self.assert_ends(ends)
                self.assertTrue(stays.runs())
                daemon.kill()
                daemon = begin()
                self.assert_ends(stays)

    def assert_replays(self, begin, daemon, status):
        """A replay of the log gives the same bits; returns the copy that was replayed."""
        copy = self.folder / "copy"
        shutil.copytree(self.folder / "saved", copy)
        self.assert_stops(daemon)
        again = begin(copy, "again")
        self.assertEqual(versions(again.status()), versions(status))
        self.assert_stops(again)
        self.assertEqual(processes.safetensors(self.folder / "again"), processes.safetensors(self.folder / "end"))
        return copy

    def keeps(self, folder, end):
        """Settings of a daemon with a log in `folder`, which it never shortens, and with the final model in `end`."""
        return {"save": str(self.folder / end), "durability": {"type": "log", "path": str(folder), "every_seconds": 3600}}

    def test_no_answered_push_is_lost_or_repeated_with_the_daemon_without_rounds(self):
        steps, period, learners = 160, 4, 3

        def begin(folder, end):
            return self.asynchronous(period=period, **self.keeps(folder, end))

        daemon, status = self.train_through_kills(begin, steps, learners, (9, 40))
        self.assertEqual(set(versions(status)), {learners * steps // period})
        # Momentum, the sum since the last momentum step, and parameters.
        copy = self.assert_replays(begin, daemon, status)
        times = collections.Counter((update.shard, rank, step) for update in processes.read_log(copy)
                                    for rank, _, step in update.pushes)
        self.assertEqual(set(times.values()), {1})

    def test_rda_and_late_ones_are_replayed_to_the_bit(self):
        def begin(folder, end):
            return self.diloco(period=5, quorum=1, grace_ms=0, aggregator={"type": "rda", "direct": "fc2.*"}, fragments=2,
                               late={"rate": 0.5}, **self.keeps(folder, end))

        self.assert_replays(begin, *self.train_through_kills(begin, steps=100, learners=3, kills=(9,)))

    def test_fragments_have_rounds_of_their_own(self):
        steps, learners = 90, 3
        daemon = self.diloco(period=9, start_trainers=learners, fragments=3, delay=1, blend=0.5)
        trainers = [self.train(daemon.address, rank, learners, data="synthetic:3200", steps=steps) for rank in range(learners)]
        for trainer in trainers:
            self.assert_ends(trainer)
        status = daemon.until_status("all have left", lambda status: not status["trainers"])
        # A slot of each fragment every nine steps; the last of them is in fragment 2, and the others push the rest.
        self.assertEqual([(each["group"], each["closed"]) for each in status["rounds"]],
                         [("fragment 0", 11), ("fragment 1", 11), ("fragment 2", 10)])
        self.assertEqual(status["counters"]["late_pushes"], 0)
        self.assertEqual(status["counters"]["gradients"], learners * 32)
        self.assertIn("in 3 fragments", status["policy"])
        accuracy = float(re.search(r"test .*accuracy ([0-9.]+) %", trainers[0].out).group(1))
        self.assertGreater(accuracy, 80, "a guess is right in 10 %")
        table = self.start_psd("status", "--server", daemon.address)
        self.assert_ends(table)
        self.assertRegex(table.out, r"\n +shard +elements +version +device +group\n +0 +200704 +11 +cpu +fragment 0\n")

    def test_learners_exchange_written_groups_in_turn(self):
        steps, learners = 90, 3
        groups = [{"match": "fc2.*", "policy": {"type": "diloco", "aggregator": "median", "quorum": 2, "grace_ms": 60_000, "start_trainers": learners}},
                  {"match": "*.bias", "optimizer": {"type": "sgd", "lr": 1}}]
        folder = self.folder / "log"
        daemon = self.daemon(policy="diloco", optimizer=OUTER, groups=groups, policy__period=9, policy__inner=INNER, policy__delay=1,
                             policy__blend=0.5, policy__start_trainers=learners, listen=(self.unix_address(),), **self.keeps(folder, "end"))
        trainers = [self.train(daemon.address, rank, learners, data="synthetic:3200", steps=steps) for rank in range(learners)]
        for trainer in trainers:
            self.assert_ends(trainer)
        status = daemon.until_status("all have left", lambda status: not status["trainers"])
        self.assertEqual([each["group"] for each in status["rounds"]], ["fc2.*", "*.bias", "others"])
        for each in status["rounds"]:
            self.assertGreaterEqual(each["closed"], steps // 9)
        # A learner that is awaited for the grace pushes earlier; the rest of a fragment is pushed at the end, when
        # others may have left.
        whole = collections.Counter(update.shard for update in processes.read_log(folder)
                                    if {rank for rank, _, _ in update.pushes} == set(range(learners)))
        self.assertEqual(set(whole), {shard["id"] for shard in status["shards"]})
        self.assertGreaterEqual(min(whole.values()), steps // 9 - 1, whole)
        accuracy = float(re.search(r"test .*accuracy ([0-9.]+) %", trainers[0].out).group(1))
        self.assertGreater(accuracy, 80, "a guess is right in 10 %")

    def test_fragments_continue_when_a_learner_dies_and_another_joins(self):
        daemon = self.diloco(period=6, quorum=1, grace_ms=150, start_trainers=2, fragments=2, delay=1)
        learners = [self.train(daemon.address, rank, 2, steps=10_000_000) for rank in range(2)]

        def until_both(ranks):
            before = [each["closed"] for each in daemon.status()["rounds"]] or [0, 0]
            daemon.until_status(f"ranks {ranks} are in a round of each fragment", lambda status: status["rounds"] and all(
                each["closed"] > was + 1 and each["in"] == ranks for was, each in zip(before, status["rounds"])))

        until_both([0, 1])
        learners[1].signal(signal.SIGSTOP)
        until_both([0])
        learners[1].signal(signal.SIGCONT)
        until_both([0, 1])
        learners[0].kill()
        daemon.until_status("it counts as lost", lambda status: status["trainers_lost"] == 1)
        until_both([1])
        self.train(daemon.address, 0, 2, steps=10_000_000)
        until_both([0, 1])

    def test_a_late_learner_is_synchronous_where_rounds_wait_for_all(self):
        daemon = self.diloco(period=6, fragments=3)
        first = self.train(daemon.address, 0, 2, steps=10_000_000)
        daemon.until_status("rounds have closed", lambda status: rounds(status)["closed"] > 5)
        late = self.train(daemon.address, 1, 2, steps=60)
        self.assert_ends(late)
        before = rounds(daemon.status())["closed"]
        daemon.until_status("the first one continues", lambda status: rounds(status)["closed"] > before + 3)
        self.assertTrue(first.runs())

    def test_no_answered_round_of_a_fragment_is_lost_with_the_daemon(self):
        learners = 2

        def begin(folder, end):
            return self.diloco(period=6, quorum=learners, fragments=3, delay=1, blend=0.25, **self.keeps(folder, end))

        daemon, status = self.train_through_kills(begin, steps=120, learners=learners, kills=(3, 9))
        # One update for each round: twenty, and at the end one of the fragments that were not just pushed.
        self.assertEqual(sorted(set(versions(status))), [20, 21])
        self.assert_replays(begin, daemon, status)

    def test_differences_continue_with_another_daemon(self):
        steps, learners, saved = 120, 2, self.folder / "saved"

        def begin():
            return self.diloco(period=6, quorum=learners, fragments=2, deltas="e3m0",
                               durability={"type": "log", "path": str(saved)})

        daemon = begin()
        trainers = [self.train(daemon.address, rank, learners, data="synthetic:3200", steps=steps, more=("--retry-timeout", 60))
                    for rank in range(learners)]
        daemon.until_status("some rounds have closed", lambda status: status["shards"] and status["shards"][0]["version"] >= 7)
        daemon.kill()
        daemon = begin()
        for trainer in trainers:
            self.assert_ends(trainer)
        accuracy = float(re.search(r"test .*accuracy ([0-9.]+) %", trainers[0].out).group(1))
        self.assertGreater(accuracy, 80, "a guess is right in 10 %")
        status = daemon.until_status("all have left", lambda status: not status["trainers"])
        self.assertEqual({shard["version"] for shard in status["shards"]}, {20, 21})

    def test_a_late_learner_has_the_rate_of_the_run(self):
        warm_up = 1_000_000
        inner = {"type": "sgd", "lr": 1.0, "schedule": {"warmup_steps": warm_up}}
        daemon = self.diloco(period=3, inner=inner, optimizer='{"type":"sgd","lr":1}')
        first_metrics, late_metrics = (self.folder / name for name in ("first.jsonl", "late.jsonl"))
        self.train(daemon.address, 0, 2, steps=10_000_000, more=("--metrics", first_metrics))
        before = daemon.until_status("rounds have closed", lambda status: rounds(status)["closed"] > 20)
        late = self.train(daemon.address, 1, 2, steps=7, more=("--metrics", late_metrics))
        self.assert_ends(late)

        def steps_of(path):
            lines = path.read_text().splitlines(keepends=True)
            return [round(json.loads(line)["lr"] * warm_up) for line in lines if line.endswith("\n")]

        mine = steps_of(late_metrics)
        self.assertEqual(len(mine), 7)
        self.assertGreater(mine[0], 3 * rounds(before)["closed"])
        self.assertEqual(mine[0] % 3, 1, "it began a round")
        processes.until("the first learner has come as far", lambda: steps_of(first_metrics)[-1] >= mine[-1])
        self.assertLessEqual(set(mine), set(steps_of(first_metrics)), "steps of the run that the first one took as well")

    def test_the_rate_is_the_runs_after_a_stop_a_lost_lease_and_another_daemon(self):
        warm_up, period = 1_000_000, 3
        inner = {"type": "sgd", "lr": 1.0, "schedule": {"warmup_steps": warm_up}}
        for options in ({}, {"fragments": 3, "delay": 0}):
            with self.subTest(options):
                folder = self.folder / f"saved{len(options)}"

                def begin():
                    return self.diloco(period=period, inner=inner, optimizer='{"type":"sgd","lr":1}', quorum=1, grace_ms=200,
                                       membership__lease_ms=1500, durability={"type": "log", "path": str(folder)}, **options)

                daemon = begin()
                metrics = [self.folder / f"{len(options)}-{rank}.jsonl" for rank in range(2)]
                learners = [self.train(daemon.address, rank, 2, steps=10_000_000, more=("--metrics", metrics[rank], "--retry-timeout", 60))
                            for rank in range(2)]

                def numbers(rank):
                    """The run's step numbers of a learner's steps, derived from their rates."""
                    lines = metrics[rank].read_text().splitlines(keepends=True) if metrics[rank].exists() else []
                    return [round(json.loads(line)["lr"] * warm_up) for line in lines if line.endswith("\n")]

                def assert_follows_run(rank):
                    seen, closed = len(numbers(rank)), max(versions(daemon.status()))
                    processes.until(f"rank {rank} continues", lambda: len(numbers(rank)) >= seen + 15)
                    newest = numbers(rank)[seen + 5:seen + 15]
                    # It may be some rounds behind if it is left out of them, but not by those that it has missed.
                    self.assertGreater(min(newest), period * (closed - 15))
                    self.assertLessEqual(max(newest), period * (max(versions(daemon.status())) + 2))

                self.until_in(daemon, [0, 1])
                learners[1].signal(signal.SIGSTOP)
                daemon.until_status("it counts as lost", lambda status: status["trainers_lost"] == 1)
                missed = rounds(daemon.status())["closed"] + 30  # so that its own count differs
                daemon.until_status("rounds close without it", lambda status: rounds(status)["closed"] > missed)
                learners[1].signal(signal.SIGCONT)
                self.until_in(daemon, [0, 1])
                assert_follows_run(1)
                daemon.kill()
                daemon = begin()
                for rank in range(2):
                    assert_follows_run(rank)
                for learner in learners:
                    learner.kill()
                self.assert_stops(daemon)


if __name__ == "__main__":
    processes.main()
