"""Properties of asynchronous training: psd-trainer simulate gives the same results for virtual trainers in each run,
and reproduces what papers claim about staleness, liars and rounds. scripts/experiments measures more of it,
docs/internals/truth.md shows the results."""

import json
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import unittest

import processes

sys.dont_write_bytecode = True
sys.path.insert(0, str(processes.REPO / "scripts"))
from experiment_lab import first_digits, values_of

DIGITS = next((folder for folder in (processes.REPO / ".data" / "mnist_5k", processes.FULL_MNIST) if folder.is_dir()), None)
SYNTHETIC = "synthetic:256"
SEEDS = (1, 2)


class TruthTest(processes.ProcessTest):
    def start(self, daemon, *more, model="mlp", data=SYNTHETIC, **flags):
        options = [item for name, value in flags.items() for item in (f"--{name.replace('_', '-')}", value)]
        return self.start_trainer("simulate", "--server", daemon.address, "--model", model, "--data", data, "--threads", 1,
                                  "--device", "cpu", *options, *more)

    def own_daemon(self, policy="locked", rate=0.05, momentum=0.0, **settings):
        optimizer = json.dumps({"type": "sgd", "lr": rate, "momentum": momentum})
        return self.daemon(listen=(self.unix_address(self._name("socket")),), policy=policy, optimizer=optimizer, **settings)

    def simulate(self, policy="locked", data=SYNTHETIC, rate=0.05, momentum=0.0, settings=None, **flags):
        """The report of a run with a daemon of its own."""
        daemon = self.own_daemon(policy, rate, momentum, **(settings or {}))
        run = self.start(daemon, "--json", data=data, **flags)
        self.assert_ends(run)
        self.assert_stops(daemon)
        return json.loads(run.out)

    def error(self, **arguments):
        """The mean test error over the seeds; a diverged run counts as knowing nothing."""
        reports = [self.simulate(data=DIGITS, seed=seed, **arguments) for seed in SEEDS]
        errors = [0.9 if report["diverged"] else 1 - report["score"]["accuracy"] for report in reports]
        print(f"{arguments}: test error {[round(100 * each, 1) for each in errors]} %")
        return statistics.mean(errors)


class Schedules(TruthTest):
    def test_a_run_has_the_same_bits_each_time(self):
        seen = set()
        for policy, settings in (("locked", {}), ("bounded_staleness", {"policy__bound": 1}),
                                 ("sync", {"policy__backup_trainers": 1}), ("local_sgd", {"policy__period": 2})):
            with self.subTest(policy):
                flags = {"trainers": 5, "steps": 43, "batch_size": 8, "policy": policy, "settings": settings}
                first, second = (self.simulate(schedule="seed:3", score_every=20, **flags) for _ in range(2))
                self.assertEqual(first, second)
                self.assertEqual(first["steps"], 43)
                self.assertEqual([score["step"] for score in first["scores"]][-1], 43)
                seen.add(first["parameters"])
        self.assertEqual(len(seen), 4)
        # hogwild without concurrent calls equals locked.
        self.assertIn(self.simulate("hogwild", schedule="seed:3", trainers=5, steps=43, batch_size=8)["parameters"], seen)
        self.assertNotIn(self.simulate(schedule="seed:4", trainers=5, steps=43, batch_size=8)["parameters"], seen)

    def test_staleness_is_one_less_than_there_are_trainers(self):
        report = self.simulate(trainers=16, steps=20 * 16, batch_size=1)
        self.assertEqual(report["staleness"]["max"], 15)
        # Each trainer's first push followed those of the lower ranks only.
        self.assertAlmostEqual(report["staleness"]["mean"], 15 * (1 - 0.5 / 20), places=6)
        for seed in SEEDS:
            at_random = self.simulate(trainers=4, steps=800, batch_size=1, schedule=f"seed:{seed}")
            self.assertAlmostEqual(at_random["staleness"]["mean"], 3, delta=0.1)
            self.assertGreater(at_random["staleness"]["max"], 6)

    def test_a_round_takes_as_long_as_the_slowest_that_it_waits_for(self):
        def round_time(backup):
            times, limit = [], 100
            for seed in SEEDS:
                report = self.simulate("sync", settings={"policy__backup_trainers": backup}, trainers=8 + backup, schedule=f"seed:{seed}",
                                       time=limit, batch_size=1, seed=seed)
                taken = sum(rank["steps"] - rank["late"] for rank in report["ranks"])
                times.append(limit / (taken / 8))
            print(f"a round of 8 + {backup} takes {times}")
            return times

        law = sum(1 / i for i in range(1, 9))  # the mean of the largest of eight exponential times
        alone, with_backup = round_time(0), round_time(2)
        for time in alone:
            self.assertAlmostEqual(time, law, delta=law / 4)
        self.assertLess(max(with_backup), 0.85 * min(alone))

    def test_a_bound_holds_back_who_is_ahead_of_a_straggler(self):
        flags = {"trainers": 4, "schedule": "straggler:factor=10", "time": 50, "batch_size": 1}
        free = self.simulate(**flags)
        bounded = self.simulate(policy="bounded_staleness", settings={"policy__bound": 2}, **flags)
        steps = [[rank["steps"] for rank in report["ranks"]] for report in (free, bounded)]
        self.assertEqual(steps[0], [50, 50, 50, 5])
        self.assertEqual(steps[1][3], 5)
        self.assertLessEqual(max(steps[1]), 5 + 2 + 1)
        self.assertLess(bounded["staleness"]["max"], free["staleness"]["max"])

    def test_slower_learners_without_rounds_push_as_often_where_the_period_is_dynamic(self):
        def run(dynamic):
            daemon = self.own_daemon("async_diloco", policy__period=10, policy__inner='{"type":"sgd","lr":0.05}', policy__dynamic_period=dynamic)
            ended = self.start(daemon, "--json", trainers=4, schedule="straggler:factor=4", time=80, batch_size=2)
            self.assert_ends(ended)
            pushes = daemon.status()["counters"]["gradients"]
            self.assert_stops(daemon)
            return json.loads(ended.out), pushes

        first, pushes = run(True)
        self.assertEqual([rank["steps"] for rank in first["ranks"]], [80, 80, 80, 20])
        # The slow one's first at 12, when the others had a period behind them, then one in two steps.
        self.assertEqual(pushes, 3 * 8 + 1 + (80 - 12) // 8)
        self.assertEqual(run(True), (first, pushes))
        self.assertEqual(run(False)[1], 3 * 8 + 2)

    def test_codecs_are_those_of_training(self):
        plain, sparse = (self.simulate(trainers=2, steps=8, codec=codec) for codec in ("none", "topk:fraction=0.01"))
        self.assertLess(sparse["bytes_pushed"], plain["bytes_pushed"] / 20)
        self.assertEqual(sparse["codec"], "topk:fraction=0.01")


@unittest.skipUnless(DIGITS, "no handwritten digits: scripts/setup makes .data/mnist_5k")
class Claims(TruthTest):
    @processes.long_test
    def test_the_inverse_rate_trains_where_the_fixed_one_fails(self):
        stale = {"trainers": 16, "steps": 400, "momentum": 0.9}
        self.assertGreater(self.error(**stale), 0.65)
        self.assertLess(self.error(settings={"policy__staleness": '{"rate":"inverse"}'}, **stale), 0.55)

    @processes.long_test
    def test_robust_aggregators_bear_liars(self):
        def of(aggregator, liars):
            return self.error(policy="sync", settings={"policy__aggregator": aggregator}, rate=0.2, trainers=5, byzantine=liars,
                              byzantine_deviation=100, steps=5 * 40)

        honest = of('{"type":"mean"}', 0)
        self.assertLess(honest, 0.2)
        self.assertGreater(of('{"type":"mean"}', 1), honest + 0.15)
        self.assertLess(of('{"type":"median"}', 1), honest + 0.1)

    @processes.long_test
    def test_so_do_those_of_learners(self):
        def of(aggregator, liars):
            return self.error(policy="diloco", rate=0.7, trainers=5, byzantine=liars, steps=5 * 40, settings={
                "policy__aggregator": f'{{"type":"{aggregator}"}}', "policy__period": 10, "policy__inner": '{"type":"sgd","lr":0.1}'})

        honest = of("mean", 0)
        self.assertLess(honest, 0.2)
        self.assertGreater(of("mean", 1), honest + 0.15)
        self.assertLess(of("median", 1), honest + 0.1)

    @processes.long_test
    def test_sparse_gradients_bear_staleness(self):
        bias = json.dumps([{"match": "bias", "optimizer": {"type": "sgd", "lr": 0.01}}])

        def cost(words):
            """The test error that a staleness of seven costs, averaged over the seeds."""
            alone, stale = (statistics.mean(
                1 - self.simulate("hogwild", f"documents:samples=20000,words={words}", 4, settings={"groups": bias}, model="svm",
                                  trainers=trainers, steps=1600, seed=seed)["score"]["accuracy"] for seed in SEEDS) for trainers in (1, 8))
            print(f"svm, {words} words: test error {100 * alone:.1f} %, with staleness {100 * stale:.1f} %")
            self.assertLess(alone, 0.35)  # of two classes: it has learned
            return stale - alone

        self.assertLess(cost(words=10_000), 0.03)
        self.assertGreater(cost(words=1_000), 0.05)

    @processes.long_test
    def test_momentum_correction_makes_up_for_sparse_gradients(self):
        rounds = {"policy": "sync", "rate": 0.05, "trainers": 4, "steps": 4 * 150}
        topk = self.error(codec="topk:fraction=0.001", momentum=0.9, **rounds)
        dgc = self.error(codec="dgc:fraction=0.001,momentum=0.9", **rounds)
        self.assertLess(dgc, topk)

    def test_rounds_are_the_large_batch(self):
        digits = self.folder / "digits"
        digits.mkdir()
        first_digits(DIGITS, 120, digits)
        values = []
        for trainers in (3, 1):
            saved = self.folder / f"{trainers}.safetensors"
            self.simulate(policy="sync", data=digits, rate=0.1, momentum=0.9, settings={"save": str(saved)}, trainers=trainers,
                          batch_size=120 // trainers, steps=60 * trainers)
            values.append(values_of(saved))
        self.assertLess(max(abs(a - b) for a, b in zip(*values)), 1e-5)
        self.assertNotEqual(*values)  # sums have another order, so somewhere the last bit differs


class Experiments(TruthTest):
    @processes.long_test
    @unittest.skipUnless(DIGITS, "no handwritten digits: scripts/setup makes .data/mnist_5k")
    def test_a_claim_is_measured_and_reported(self):
        page = processes.REPO / "docs" / "internals" / "truth.md"
        before = page.read_bytes()
        build = pathlib.Path(processes.PSD).parents[1]
        done = subprocess.run([processes.REPO / "scripts" / "experiments", "--quick", "--only", "backup", "--build", build, "--data", DIGITS],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=4 * processes.WAIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("### Backup trainers", done.stdout)
        self.assertEqual(len(re.findall(r"^\| 8 \+ [0124] \| [0-9.]+ \| [0-9.]+ \| [0-9.]+ \| [0-9.–]+ \|$", done.stdout, re.MULTILINE)), 4,
                         done.stdout)
        self.assertIn("- Confirmed: each backup trainer makes rounds shorter.", done.stdout)
        self.assertEqual(page.read_bytes(), before, "--quick has written to the page")


class Without(TruthTest):
    """Noise does not depend on the parameters, so what others pushed equals what they would have pushed alone."""

    def logged(self, trainers, steps, policy="locked", momentum=0.9, more=(), **settings):
        saved = self.folder / self._name("saved")
        daemon = self.own_daemon(policy, 0.01, momentum, durability=json.dumps({"type": "log", "path": str(saved)}), **settings)
        run = self.start(daemon, *more, trainers=trainers, byzantine=trainers, steps=steps)
        self.assert_ends(run)
        self.assert_stops(daemon)
        return saved

    def replay(self, folder, *arguments):
        replayed = self.start_psd("replay", folder, *arguments)
        self.assert_ends(replayed)
        return replayed.out

    def test_it_is_what_the_others_would_have_made_alone(self):
        for policy in ("locked", "hogwild", "bounded_staleness"):
            both, alone = self.logged(2, 30, policy), self.logged(1, 15, policy)
            files = [self.folder / f"{policy}.{name}" for name in ("without", "only", "alone", "both", "all")]
            self.assertIn("left out 60", self.replay(both, "--without", "rank=1", "--to", files[0]))
            self.replay(both, "--only", "rank=0", "--to", files[1])
            self.replay(alone, "--to", files[2])
            self.replay(both, "--to", files[3])
            self.replay(both, "--only", "rank=0", "--only", "rank=1", "--to", files[4])
            contents = [file.read_bytes() for file in files]
            self.assertEqual(contents[0], contents[2])
            self.assertEqual(contents[1], contents[2])
            self.assertEqual(contents[3], contents[4])
            self.assertNotEqual(contents[0], contents[3])

    def test_blame_tells_who_moved_what(self):
        saved = self.logged(2, 20, more=("--schedule", "straggler:factor=3"))
        file = self.folder / "blame.json"
        self.replay(saved, "--blame", file)
        blame = json.loads(file.read_text(encoding="utf-8"))
        self.assertEqual([tensor["name"] for tensor in blame["tensors"]], ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"])
        for tensor in blame["tensors"]:
            distances = [update["distance"] for update in tensor["largest"]]
            self.assertEqual(distances, sorted(distances, reverse=True))
            self.assertGreater(distances[-1], 0)
            sums = {tuple(each["ranks"]): each for each in tensor["by_rank"]}
            self.assertEqual(set(sums), {(0,), (1,)})
            self.assertGreater(sums[0,]["updates"], 2 * sums[1,]["updates"])
            self.assertGreater(sums[0,]["distance"], sums[1,]["distance"])

    def test_what_has_no_meaning_is_refused_by_a_line(self):
        for policy, settings in (("sync", {}), ("local_sgd", {"policy__period": 3}),
                                 ("diloco", {"policy__period": 3, "policy__inner": '{"type":"sgd","lr":0.1}'})):
            with self.subTest(policy):
                rounds = self.logged(3, 9, policy, momentum=0.0, policy__start_trainers=3, **settings)
                self.assert_fails(self.start_psd("replay", rounds, "--without", "rank=1"), "of a round of ranks 0, 1, 2")
        alone = self.logged(1, 3)
        for arguments, words in ((("--without", "rank=1"), "has no update of rank 1; expected one of 0"),
                                 (("--only", "1"), "expected rank=N"), (("--only", "rank=x"), "not a whole number"),
                                 (("--only", "rank=0", "--without", "rank=0"), "exclude each other"),
                                 (("--without", "rank=0", "--until", 9), "which ends at 3"),
                                 (("--blame", self.folder / "no" / "file"), "cannot create")):
            self.assert_fails(self.start_psd("replay", alone, *arguments), words)
        checkpoints = self.folder / "checkpoints"
        daemon = self.own_daemon(durability=json.dumps({"type": "checkpoint", "path": str(checkpoints)}))
        self.assert_ends(self.start(daemon, trainers=1, steps=2))
        self.assert_stops(daemon)
        self.assert_fails(self.start_psd("replay", checkpoints, "--without", "rank=0"), "without a log")


    def test_an_average_is_of_all_whose_gradients_are_in_it(self):
        """Rows are each trainer's own; a push on behalf of both cannot be separated."""
        groups = json.dumps([{"match": "category*", "policy": {"type": "hogwild"}, "optimizer": {"type": "adagrad", "lr": 0.05}}])
        saved = self.folder / "averaged"
        daemon = self.own_daemon("allreduce", 0.01, policy__start_trainers=2, groups=groups,
                                 durability=json.dumps({"type": "log", "path": str(saved)}))
        trainers = [self.start_trainer("train", "--server", daemon.address, "--rank", rank, "--world-size", 2, "--model", "dlrm:dim=4,hidden=8",
                                       "--data", "clicks:samples=2000,scale=100000", "--threads", 1, "--steps", 5) for rank in range(2)]
        for trainer in trainers:
            self.assert_ends(trainer)
        self.assert_stops(daemon)
        for rank in range(2):
            for choice in ("--without", "--only"):
                self.assert_fails(self.start_psd("replay", saved, choice, f"rank={rank}"),
                                  "is of an average (policy allreduce) of ranks 0, 1")
        blame = self.folder / "blame.json"
        self.replay(saved, "--only", "rank=0", "--only", "rank=1", "--blame", blame)
        for tensor in json.loads(blame.read_text(encoding="utf-8"))["tensors"]:
            self.assertEqual([each["ranks"] for each in tensor["by_rank"]], [[0, 1]])
            for update in tensor["largest"]:
                self.assertEqual([(source["rank"], source["step"] > 0) for source in update["sources"]], [(0, True), (1, False)])


class Troubles(TruthTest):
    def test_more_trainers_than_samples_and_no_daemon(self):
        for data, words in (("synthetic:200", "--trainers: 250 for 200 synthetic images"), ("synthetic:300", "virtual trainer 0: no psd daemon")):
            self.assert_fails(self.start_trainer("simulate", "--server", self.unix_address("none.sock"), "--connect-timeout", 0.1, "--data",
                                                 data, "--model", "mlp", "--trainers", 250, "--steps", 1), words)

    def test_rounds_of_more_trainers_than_there_are(self):
        daemon = self.own_daemon("sync", world_size=3)
        self.assert_fails(self.start(daemon, trainers=2, steps=4), "virtual trainer 0", "world size")
        self.assert_serves(daemon)

    def test_a_rate_that_is_too_high_is_a_result(self):
        report = self.simulate(rate=1e6, trainers=2, steps=100)
        self.assertRegex(report["diverged"], r"virtual trainer \d: step \d+ .* holds (nan|-nan|inf|-inf)|not finite")
        self.assertIsNone(report["score"])

    def test_a_daemon_that_dies_ends_it(self):
        daemon = self.own_daemon("sync")
        run = self.start(daemon, trainers=4, steps=10_000_000)
        daemon.until_status("virtual trainers train", lambda status: len(status["trainers"]) == 4 and status["counters"]["gradients"] > 20)
        daemon.kill()
        self.assert_fails(run, "broke")

    def test_a_signal_ends_it_politely(self):
        for policy in ("sync", "bounded_staleness"):
            daemon = self.own_daemon(policy)
            run = self.start(daemon, trainers=4, steps=10_000_000, schedule="straggler:factor=50,seed=1")
            daemon.until_status("virtual trainers train", lambda status: len(status["trainers"]) == 4 and status["counters"]["gradients"] > 8)
            run.signal(signal.SIGINT)
            self.assert_ends(run, 128 + signal.SIGINT)
            self.assertEqual(daemon.status()["trainers"], [])
            self.assertEqual(daemon.status()["trainers_lost"], 0)


if __name__ == "__main__":
    processes.main()
