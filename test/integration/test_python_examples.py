"""The examples in trainer/python/examples, started as in docs/reference/python.md, learn their tasks."""

import importlib.util
import inspect
import json
import math
import pathlib
import random
import re
import subprocess
import sys
import unittest

import processes
from example_programs import EXAMPLES, runnable
from sparse_problems import CriteoProblem, logistic_optimum

MNIST = processes.REPO / ".data" / "mnist_5k"
SECONDS = 240

# Starts each program with --help; one process, since each would import torch.
HELP = """
import contextlib, os, runpy, sys
for path in sys.argv[1:]:
    sys.path[0] = os.path.dirname(path)
    sys.argv = [path, "--help"]
    with contextlib.suppress(SystemExit):
        runpy.run_path(path, run_name="__main__")
"""


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

    def test_click_logs(self):
        problem = CriteoProblem(2000)
        clicks = self.write("clicks.tsv", problem.text)
        daemon = self.daemon(policy="locked", optimizer='{"type":"adagrad","lr":0.2}')
        run = self.torchrun(EXAMPLES / "click_logs.py", clicks, "--server", daemon.address, "--batch-size", 64, "--epochs", 25)
        (losses,) = self.said([run], r"rank 0 epoch \d+: log loss ([\d.]+)")
        self.assertEqual(len(losses), 25)
        # psd-trainer has the same model: names, ids and values.
        scored = self.start_trainer("eval", "--server", daemon.address, "--model", "logistic", "--data", f"criteo:{clicks}:test={clicks}", "--json")
        self.assert_ends(scored)
        self.assertLess(json.loads(scored.out)["loss"], logistic_optimum(problem.matrix, problem.labels) * 1.03)

    @processes.long_test
    def test_transformer(self):
        daemon = self.daemon(policy="sync", optimizer='{"type":"adam","lr":0.003}')
        pages = sorted((processes.REPO / "docs" / "internals" / "decisions").glob("*.md"))
        text = self.write("text.txt", "".join(page.read_text(encoding="utf-8") for page in pages))
        run = self.torchrun(EXAMPLES / "transformer.py", text, "--server", daemon.address, "--steps", 160)
        for rank in range(2):
            (perplexities,) = self.said([run], rf"rank {rank} step \d+: perplexity ([\d.]+)")
            self.assertEqual(len(perplexities), 9)
            self.assertLess(perplexities[-1], 18, "how often each character comes would give 23")

    def test_the_program_of_the_page(self):
        daemon = self.daemon(policy=None, optimizer=None)
        page = (processes.REPO / "docs" / "tutorials" / "pytorch.md").read_text(encoding="utf-8")
        program = re.search(r"`train\.py`:\n\n```python\n(.*?)```", page, re.DOTALL)[1]
        self.assertIn("tcp://localhost:5500", program)
        run = self.start(self.write("train.py", program.replace("tcp://localhost:5500", daemon.address)))
        ((loss,),) = self.said([run], r"rank 0: loss ([\d.]+)")
        self.assertLess(loss, 1)
        subprocess.run([processes.PSD, "export", "--server", daemon.address, "--to", self.folder / "model.safetensors"], check=True,
                       capture_output=True, timeout=processes.WAIT_S)

    def test_the_programs_of_sparse_models(self):
        page = (processes.REPO / "docs" / "tutorials" / "sparse_models.md").read_text(encoding="utf-8")
        make, predict = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        small = make.replace("200_000", "4_000").replace("20_000", "500")
        self.assertNotEqual(small, make)
        subprocess.run([sys.executable, "-c", small], check=True, cwd=self.folder, timeout=processes.WAIT_S)
        saved = self.folder / "logistic_saved"
        daemon = self.daemon("--config", processes.REPO / "configs" / "logistic.json", listen=(self.unix_address(),), policy=None, optimizer=None,
                             device=None, durability__path=str(saved))
        trainer = self.start_trainer("train", "--server", daemon.address, "--model", "logistic", "--threads", 1, "--batch-size", 256, "--epochs", 3,
                                     "--data", f"criteo:{self.folder / 'train.tsv'}:test={self.folder / 'test.tsv'}")
        self.assert_ends(trainer)
        self.assert_ends(daemon)
        for what in (("--table", "weights", "--format", "libsvm", "--to", "weights.txt"), ("--to", "bias.safetensors")):
            subprocess.run([processes.PSD, "export", saved, *what], check=True, cwd=self.folder, capture_output=True, timeout=processes.WAIT_S)
        lines = (self.folder / "test.tsv").read_text(encoding="utf-8")
        done = subprocess.run([sys.executable, "-c", predict], check=True, cwd=self.folder, input=lines, capture_output=True, text=True,
                              timeout=processes.WAIT_S)
        labels = [int(line[0]) for line in lines.splitlines()]
        predicted = [float(line) for line in done.stdout.split()]
        loss = -sum(math.log(each if label else 1 - each) for label, each in zip(labels, predicted)) / len(labels)
        said = float(re.search(r"test loss ([\d.]+)", trainer.out)[1])
        self.assertAlmostEqual(loss, said, delta=0.002)  # predictions have three digits

    def words(self):
        text = "the cat sees a red bird and the dog sees a small cat . the bird sings while the red dog sleeps . ".split()
        draw = random.Random(1)
        return self.write("words.txt", " ".join(word for _ in range(150) for word in draw.sample(text[:13], 3) + text))

    def test_gpt_resumes(self):
        daemon = self.daemon(policy="sync", optimizer=None)
        command = (EXAMPLES / "gpt.py", self.words(), "--steps", 80, "--length", 32, "--checkpoint", self.folder / "gpt.pt")
        start = self.torchrun if processes.LONG else self.start
        first, second = (self.said([start(*command, "--server", daemon.address, *more)], r"rank 0 step \d+: perplexity ([\d.]+)")[0]
                         for more in (("--stop", 40), ("--resume",)))
        self.assertEqual((len(first), len(second)), (2, 2))
        self.assertLess(second[-1], 0.8 * first[-1])
        self.assertLess(second[-1], 4)

    def test_gpt_resumes_at_a_new_daemon(self):
        """With the same perplexity as without an interruption."""
        command = (EXAMPLES / "gpt.py", self.words(), "--steps", 40, "--length", 16, "--checkpoint", self.folder / "gpt.pt")
        said = []
        for more in ((), ("--stop", 20), ("--resume",)):
            daemon = self.daemon(policy="sync", optimizer=None)
            said.append(self.said([self.start(*command, "--server", daemon.address, *more)], r"rank 0 step \d+: perplexity ([\d.]+)")[0])
        self.assertEqual(said[0], said[1] + said[2])

    def test_word_language_model(self):
        daemon = self.daemon(policy="sync", optimizer=None, policy__start_trainers=2)
        run = self.torchrun(EXAMPLES / "word_language_model.py", self.words(), "--server", daemon.address, "--epochs", 5, "--width", 16,
                            "--batch-size", 8, "--length", 10)
        (validation,) = self.said([run], r"rank 0 epoch .* perplexity ([\d.]+)")
        (test,) = self.said([run], r"test perplexity ([\d.]+)")
        self.assertEqual((len(validation), len(test)), (5, 2))
        self.assertEqual(*test, "both have loaded the values of the same epoch")
        self.assertLess(test[0], 4)

    def test_gan(self):
        generator, critic = (self.daemon(policy="locked", optimizer=None) for _ in range(2))
        run = self.start(EXAMPLES / "gan.py", "--generator", generator.address, "--critic", critic.address, "--steps", 300)
        (distances,) = self.said([run], r"distance from the middle: ([\d.]+)")
        self.assertAlmostEqual(distances[0], 2, delta=0.7)

    def test_lora(self):
        daemon = self.daemon(policy="locked", optimizer=None)
        run = self.start(EXAMPLES / "lora.py", "--server", daemon.address, "--steps", 100)
        ((before, after),) = self.said([run], r"([\d.]+)% (?:before|with adapters)")
        self.assertLess(before, 50)
        self.assertGreater(after, 85)

    def reinforced(self, *arguments):
        """The mean rewards of the steps; the number of versions that used batches were old at most; how many were dropped."""
        daemon = self.daemon(policy="locked", optimizer=None, publish={"every_updates": 1})
        run = self.start(EXAMPLES / "reinforce.py", "--server", daemon.address, *arguments)
        ((*rewards,),) = self.said([run], r"reward ([\d.]+)")
        (last,) = re.findall(r"batches at most (\d+) versions old, (\d+) dropped\n$", run.out)
        return rewards, *map(int, last)

    def test_reinforce(self):
        rewards, oldest, _ = self.reinforced("--steps", 80)
        self.assertEqual(len(rewards), 4)
        self.assertLess(rewards[0], 0.3)
        self.assertGreater(rewards[-1], 0.5)
        self.assertLessEqual(oldest, 4)

    def test_reinforce_without_stale_samples(self):
        # Two generators make batches with the same version, and the step with one makes the other stale.
        _, oldest, dropped = self.reinforced("--steps", 30, "--max-staleness", 0)
        self.assertEqual(oldest, 0)
        self.assertGreater(dropped, 0)

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

    def test_the_page_has_every_argument(self):
        import psd.torch

        page = (processes.REPO / "docs/reference/python.md").read_text(encoding="utf-8")
        for kind in (psd.Client, psd.torch.Optimizer, psd.torch.DiLoCo):
            for name in set(inspect.signature(kind.__init__).parameters) - {"self", "options"}:
                with self.subTest(kind=kind.__name__, argument=name):
                    self.assertRegex(page, rf"`[^`\n]*\b{name}\b[^`\n]*`")

    def test_each_tells_of_itself(self):
        page, readme = ((processes.REPO / path).read_text(encoding="utf-8") for path in ("docs/reference/python.md", "trainer/python/README.md"))
        for example in sorted(EXAMPLES.glob("*.py")):
            self.assertIn(f"(../../trainer/python/examples/{example.name})", page)
            self.assertIn(f"({example.parent.name}/{example.name})", readme)
        done = subprocess.run([sys.executable, "-c", HELP, *runnable()], text=True, capture_output=True, check=True, timeout=SECONDS)
        self.assertEqual(done.stdout.count("usage: "), len(runnable()), done.stderr)
        self.assertGreaterEqual(done.stdout.count("    psd --set"), len(runnable()))


if __name__ == "__main__":
    processes.main()
