"""The main job on the full MNIST: one pass by two trainers comes as far as one process alone."""

import json
import unittest

import processes

DATA = processes.REPO.parent / "shared" / "data" / "mnist"
TRAINING_S = 1500
ACCURACY_MIN = 0.975
DIFFERENCE_MAX = 0.005


@unittest.skipUnless(DATA.is_dir(), f"the full MNIST is not there: {DATA}")
class Mnist(processes.ProcessTest):
    def accuracy_after_one_pass(self, trainers, policy):
        """SGD with a rate of 0.03, as configs/hogwild.json has it, and batches of 32."""
        daemon = processes.Daemon(self.folder, self._name("psd"),
                                  ["--config", processes.REPO / "configs" / "hogwild.json", "--listen", self.unix_address(),
                                   "--set", f"policy.type={policy}"])
        self.processes.append(daemon)
        common = ["--server", daemon.address, "--model", "mnist_cnn", "--data", DATA]
        running = [self.start_trainer("train", *common, "--rank", rank, "--world-size", trainers, "--epochs", 1,
                                      "--batch-size", 32) for rank in range(trainers)]
        for trainer in running:
            self.assertEqual(trainer.wait(TRAINING_S), 0)
        evaluation = self.start_trainer("eval", "--json", *common)
        self.assertEqual(evaluation.wait(TRAINING_S), 0)
        report = json.loads(evaluation.out)
        self.assertEqual(report["samples"], 10_000)
        self.assert_stops(daemon)
        print(f"{trainers} trainer(s), {policy}: loss {report['loss']:.4f}, accuracy {100 * report['accuracy']:.2f} %")
        return report["accuracy"]

    def test_one_pass(self):
        alone = self.accuracy_after_one_pass(1, "locked")
        for policy in ("hogwild", "locked"):
            with self.subTest(policy=policy):
                accuracy = self.accuracy_after_one_pass(2, policy)
                self.assertGreaterEqual(accuracy, ACCURACY_MIN)
                # Together they may be better, not worse.
                self.assertGreaterEqual(accuracy, alone - DIFFERENCE_MAX)


if __name__ == "__main__":
    processes.main()
