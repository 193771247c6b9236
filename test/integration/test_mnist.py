"""The main job on real digits: one pass over the full MNIST by two trainers comes as far as one process alone, and
eight over the 5,000 digits reach what the quickstart promises, also when the daemon is killed in mid-epoch."""

import json
import unittest

import processes

FULL = processes.FULL_MNIST
DIGITS = processes.REPO / ".data" / "mnist_5k"
TRAINING_S = 1500
ACCURACY_MIN = 0.975
QUICKSTART_EPOCHS = 8
QUICKSTART_ACCURACY_MIN = 0.93
DIFFERENCE_MAX = 0.005


class Mnist(processes.ProcessTest):
    def start_daemon(self, policy, durability):
        """SGD with a rate of 0.03, as configs/hogwild.json has it."""
        daemon = processes.Daemon(self.folder, self._name("psd"),
                                  ["--config", processes.REPO / "configs" / "hogwild.json", "--listen", self.unix_address(),
                                   "--set", f"policy.type={policy}", "--set", f"durability={json.dumps(durability)}"])
        self.processes.append(daemon)
        return daemon

    def accuracy_after(self, epochs, data, trainers, policy, durability=None, kills_after=()):
        """Batches of 32. The daemon is killed once the slower trainer has made each of `kills_after` steps, and started again."""
        daemon = self.start_daemon(policy, durability or {"type": "none"})
        common = ["--server", daemon.address, "--model", "mnist_cnn", "--data", data]
        running = [self.start_trainer("train", *common, "--rank", rank, "--world-size", trainers, "--epochs", epochs,
                                      "--batch-size", 32) for rank in range(trainers)]
        for steps in kills_after:
            daemon.until_status(f"all have made {steps} steps", lambda status: len(status["trainers"]) == trainers
                                and all(trainer["step"] >= steps for trainer in status["trainers"]))
            daemon.kill()
            daemon = self.start_daemon(policy, durability)
        for trainer in running:
            self.assertEqual(trainer.wait(TRAINING_S), 0)
            self.assertEqual(trainer.err.count("back after"), len(kills_after), trainer.err)
        evaluation = self.start_trainer("eval", "--json", *common)
        self.assertEqual(evaluation.wait(TRAINING_S), 0)
        report = json.loads(evaluation.out)
        self.assertEqual(report["samples"], 10_000 if data == FULL else 1_000)
        self.assert_stops(daemon)
        print(f"{trainers} trainer(s), {policy}: loss {report['loss']:.4f}, accuracy {100 * report['accuracy']:.2f} %")
        return report["accuracy"]

    @unittest.skipUnless(FULL.is_dir(), f"PSD_MNIST names no folder with the full MNIST: {FULL}")
    def test_one_pass(self):
        alone = self.accuracy_after(1, FULL, 1, "locked")
        for policy in ("hogwild", "locked"):
            with self.subTest(policy=policy):
                accuracy = self.accuracy_after(1, FULL, 2, policy)
                self.assertGreaterEqual(accuracy, ACCURACY_MIN)
                # Together they may be better, not worse.
                self.assertGreaterEqual(accuracy, alone - DIFFERENCE_MAX)

    @unittest.skipUnless(DIGITS.is_dir(), f"scripts/setup has not made {DIGITS}")
    def test_quickstart_digits(self):
        self.assertGreaterEqual(self.accuracy_after(QUICKSTART_EPOCHS, DIGITS, 2, "hogwild"), QUICKSTART_ACCURACY_MIN)

    @unittest.skipUnless(DIGITS.is_dir(), f"scripts/setup has not made {DIGITS}")
    def test_daemon_killed_in_mid_epoch(self):
        # An epoch is 63 steps of each trainer.
        accuracy = self.accuracy_after(QUICKSTART_EPOCHS, DIGITS, 2, "locked", {"type": "log", "path": str(self.folder / "saved")},
                                       kills_after=(90, 220))
        self.assertGreaterEqual(accuracy, QUICKSTART_ACCURACY_MIN)


if __name__ == "__main__":
    processes.main()
