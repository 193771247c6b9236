"""Training through every codec: MNIST's digits reach the accuracy of plain float32 to within a point, in as few bytes
as docs/reference/codecs.md says."""

import json
import unittest

import processes

DIGITS = processes.REPO / ".data" / "mnist_5k"
TRAINING_S = 900
EPOCHS = 8 if processes.LONG else 4
DIFFERENCE_MAX = 0.01
# Name, options and minimal compression. The model's slices are not whole blocks, hence a little less than the format's.
CODECS = [("fp16", 1.99), ("bf16", 1.99), ("int8", 3.9), ("e3m0", 7.7), ("topk:fraction=0.01", 40), ("onebit", 25)]


class Codecs(processes.ProcessTest):
    def trained(self, data, epochs, *more, model="mlp"):
        """One trainer's run: the accuracy, the daemon's status of the trainer and the lines of --metrics."""
        daemon = processes.Daemon(self.folder, self._name("psd"),
                                  ["--listen", self.unix_address(), "--set", "optimizer.lr=0.03"])
        self.processes.append(daemon)
        metrics = self.folder / f"{daemon.name}.jsonl"
        common = ["--server", daemon.address, "--model", model, "--data", data]
        trainer = self.start_trainer("train", *common, "--rank", 0, "--world-size", 1, "--epochs", epochs,
                                     "--metrics", metrics, *more)
        self.assertEqual(trainer.wait(TRAINING_S), 0, trainer.report())
        evaluation = self.start_trainer("eval", "--json", *common)
        self.assertEqual(evaluation.wait(TRAINING_S), 0)
        counters = daemon.status()["counters"]
        self.assert_stops(daemon)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        return json.loads(evaluation.out)["accuracy"], counters, lines

    @unittest.skipUnless(DIGITS.is_dir(), f"scripts/setup has not made {DIGITS}")
    def test_accuracy(self):
        plain, counters, _ = self.trained(DIGITS, EPOCHS)
        self.assertEqual(counters["push_bytes"], counters["push_value_bytes"])
        print(f"none: accuracy {100 * plain:.2f} %")
        for codec, compression_min in CODECS:
            if not processes.LONG and codec != "int8":
                continue
            with self.subTest(codec=codec):
                accuracy, counters, lines = self.trained(DIGITS, EPOCHS, "--codec", codec)
                compression = counters["push_value_bytes"] / counters["push_bytes"]
                print(f"{codec}: accuracy {100 * accuracy:.2f} %, gradients {compression:.1f} times smaller")
                self.assertGreaterEqual(accuracy, plain - DIFFERENCE_MAX)
                self.assertGreaterEqual(compression, compression_min)
                self.assertAlmostEqual(lines[-1]["compression"], compression, delta=0.01 * compression)
                self.assertEqual(sum(line["push_bytes"] for line in lines), counters["push_bytes"])

    def test_pulls(self):
        for codec, compression in (("fp16", 1.99), ("int8", 3.9)):
            with self.subTest(codec=codec):
                _, counters, _ = self.trained("synthetic:640", 2, "--pull-codec", codec, "--transport", "rpc",
                                              "--inflight", 2, "--prefetch", "--codec", "topk")
                self.assertEqual(counters["refused_non_finite"], 0)
                # The readers that score the model pull float32.
                self.assertGreater(counters["pull_value_bytes"] / counters["pull_bytes"], 0.8 * compression)


if __name__ == "__main__":
    processes.main()
