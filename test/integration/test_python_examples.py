"""The examples in trainer/python/examples, started as in docs/python.md, learn their tasks."""

import importlib.util
import json
import pathlib
import random
import re
import subprocess
import sys
import unittest

import processes

EXAMPLES = processes.REPO / "trainer" / "python" / "examples"
MNIST = processes.REPO / ".data" / "mnist_5k"
SECONDS = 240


class PythonExamples(processes.ProcessTest):
    def start(self, *arguments):
        process = processes.Process(self.folder, self._name("python"), [sys.executable, *arguments])
        self.processes.append(process)
        return process

    def said(self, processes_, pattern):
        """The first group of the pattern in each matching line of each program's output, when all have ended."""
        found = []
        for process in processes_:
            self.assertEqual(process.wait(SECONDS), 0, process.err)
            found.append([float(value) for value in re.findall(pattern, process.out)])
        return found

    def torchrun(self, *arguments):
        return self.start("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, *arguments)

    @unittest.skipUnless(MNIST.is_dir(), "no .data/mnist_5k (scripts/setup brings it)")
    def test_mnist(self):
        daemon = self.daemon(policy="locked", optimizer='{"type":"sgd","lr":0.05}', world_size={"min": 1, "max": 4})
        trainers = [self.start(EXAMPLES / "mnist.py", "--data", MNIST, "--server", daemon.address) for _ in range(2)]
        for accuracies in self.said(trainers, r"test accuracy ([\d.]+)%"):
            self.assertGreater(accuracies[0], 85)
        self.assertEqual(sum(map(sum, self.said(trainers, r"(\d+) samples,"))), 8000)

    def test_movielens(self):
        draw = random.Random(1)
        users, films = ({number * 7919: draw.gauss(0, 0.7) for number in range(1, count)} for count in (60, 80))
        lines = [f"{user},{film},{min(5, max(0.5, round(2 * (3 + users[user] + films[film] + draw.gauss(0, 0.2))) / 2))},0"
                 for user in users for film in films if draw.random() < 0.5]
        ratings = self.write("ratings.csv", "\n".join(["userId,movieId,rating,timestamp", *lines]) + "\n")
        daemon = self.daemon(policy="locked", optimizer='{"type":"adagrad","lr":0.1}')
        run = self.torchrun(EXAMPLES / "movielens.py", ratings, "--server", daemon.address, "--batch-size", 64)
        (errors,) = self.said([run], r"rank 0 epoch \d+: RMSE ([\d.]+)")
        self.assertEqual(len(errors), 5)
        self.assertLess(errors[-1], 0.6, "the ratings' own deviation is about 0.95")

    @processes.long_test
    def test_transformer(self):
        daemon = self.daemon(policy="sync", optimizer='{"type":"adam","lr":0.003}')
        pages = sorted((processes.REPO / "docs" / "decisions").glob("*.md"))
        text = self.write("text.txt", "".join(page.read_text(encoding="utf-8") for page in pages))
        run = self.torchrun(EXAMPLES / "transformer.py", text, "--server", daemon.address, "--steps", 160)
        for rank in range(2):
            (perplexities,) = self.said([run], rf"rank {rank} step \d+: perplexity ([\d.]+)")
            self.assertEqual(len(perplexities), 9)
            self.assertLess(perplexities[-1], 18, "how often each character comes would give 23")

    @unittest.skipUnless(importlib.util.find_spec("jax"), "no jax (scripts/setup --tests brings it)")
    def test_jax(self):
        daemon = self.daemon(policy="locked", optimizer='{"type":"adam","lr":0.01}')
        trainers = [self.start(EXAMPLES / "jax_example.py", "--server", daemon.address, "--rank", rank, "--world-size", 2)
                    for rank in range(2)]
        for accuracies in self.said(trainers, r"accuracy ([\d.]+)%"):
            self.assertGreater(accuracies[0], 95)

    @processes.long_test
    def test_what_scripts_bench_measures(self):
        import psd

        program, package = processes.REPO / "test" / "bench" / "python_client.py", pathlib.Path(psd.__file__).parents[1]
        for operation in ("pull", "push", "train"):
            done = subprocess.run([sys.executable, program, operation, "--server", self.daemon().address, "--package", package,
                                   "--size", "1000000", "--seconds", "0.01"], text=True, capture_output=True, check=True,
                                  timeout=SECONDS)
            report = json.loads(done.stdout)
            self.assertGreater(report["server_median_s" if operation == "train" else "median_s"], 0)

    def test_each_tells_of_itself(self):
        page = (processes.REPO / "docs" / "python.md").read_text(encoding="utf-8")
        for example in sorted(EXAMPLES.glob("*.py")):
            self.assertIn(f"(../trainer/python/examples/{example.name})", page)
            if example.name == "jax_example.py" and not importlib.util.find_spec("jax"):
                continue
            done = subprocess.run([sys.executable, example, "--help"], text=True, capture_output=True, check=True,
                                  timeout=processes.WAIT_S)
            self.assertIn("psd --set", done.stdout)


if __name__ == "__main__":
    processes.main()
