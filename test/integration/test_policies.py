"""Properties of policies for training as a whole, on handwritten digits: robust aggregation tolerates a trainer that
sends garbage, and a rate that falls with staleness tolerates gradients that are many versions old."""

import json
import os
import subprocess
import unittest

import processes

TRIALS = os.environ["PSD_TRIALS_BIN"]
DIGITS = next((folder for folder in (processes.REPO / ".data" / "mnist_5k", processes.FULL_MNIST) if folder.is_dir()), None)
TRAINING_SAMPLES = 4000
RUN_S = 300

TRAINERS, ROUNDS = 5, 1000
SPOILT = 0.5  # below it nothing was learned
POINT = 0.01

DELAY, UPDATES = 30, 600
RATE = 0.2
SEEDS = range(1, 6)  # a run's result varies more with its seed than with compensation


@unittest.skipUnless(DIGITS, "no handwritten digits: scripts/setup makes .data/mnist_5k")
class Policies(processes.ProcessTest):
    def trial(self, policy, rate, subcommand, **options):
        """The last point of psd-trials' curve with a daemon of this policy."""
        daemon = self.daemon(listen=(self.unix_address(self._name("socket")),), policy="locked",
                             optimizer={"type": "sgd", "lr": rate},
                             **{f"policy__{key}": value for key, value in policy.items()})
        flags = [part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", str(value))]
        done = subprocess.run([TRIALS, "--server", daemon.address, "--data", DIGITS, "--samples", str(TRAINING_SAMPLES), subcommand,
                               *flags], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertFalse(report.get("errors"), report)
        daemon.kill()
        return report["curve"][-1]

    def accuracy(self, aggregator, garbage):
        policy = {"type": "sync", "start_trainers": TRAINERS, "aggregator": aggregator}
        end = self.trial(policy, 0.1, "together", trainers=TRAINERS, steps=ROUNDS, garbage=garbage, batch_size=64, evaluate_ms=1000)
        print(f"{aggregator}, {garbage} of {TRAINERS} send garbage: {100 * end['accuracy']:.1f} %")
        return end["accuracy"]

    def test_one_of_five_sends_garbage(self):
        clean = self.accuracy({"type": "mean"}, garbage=0)
        self.assertLess(self.accuracy({"type": "mean"}, garbage=1), SPOILT)
        for aggregator in ({"type": "median"}, {"type": "trimmed_mean", "trim": 1}, {"type": "krum", "byzantine": 1},
                           {"type": "multi_krum", "byzantine": 1}):
            with self.subTest(aggregator=aggregator):
                self.assertGreaterEqual(self.accuracy(aggregator, garbage=1), clean - POINT)

    def loss_after(self, delay, rate=RATE, seed=1, **modifiers):
        end = self.trial({"type": "locked", **modifiers}, rate, "delayed", seed=seed, delay=delay, steps=UPDATES, evaluate_every=UPDATES)
        print(f"delay {delay}, rate {rate}, seed {seed}, {modifiers}: loss {end['loss']}, accuracy {100 * end['accuracy']:.1f} %")
        return end["loss"] if end["loss"] is not None else float("inf")

    def test_inverse_rate_recovers_what_a_fixed_rate_loses(self):
        fresh = self.loss_after(0)
        self.assertLess(fresh, 0.6)  # the rate is right for fresh gradients
        self.assertGreater(self.loss_after(DELAY), 2)  # ln 10 = 2.3: no better than guessing
        self.assertLess(self.loss_after(DELAY, staleness={"rate": "inverse"}), 1)

    def test_delay_compensation_makes_up_for_some_of_a_delay(self):
        delay, rate = 6, 0.05  # no run fails with these
        plain = [self.loss_after(delay, rate, seed) for seed in SEEDS]
        for compensation, share in (({"lambda": 0.04}, 1.05), ({"lambda": 2, "adaptive": True}, 1)):
            with self.subTest(compensation=compensation):
                compensated = [self.loss_after(delay, rate, seed, delay_compensation=compensation) for seed in SEEDS]
                for one, other in zip(compensated, plain):
                    self.assertNotEqual(one, other)  # it had an effect
                self.assertLess(sum(compensated), share * sum(plain))


if __name__ == "__main__":
    processes.main()
