"""The group of scripts/bench that compares psd-executor with PyTorch's parameter server tutorial."""

import contextlib
import functools
import json
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

from bench_group import Group
from bench_programs import PROGRAM_S, READY_S, Failed, last_line, processor_seconds
from bench_report import Row

REPO = pathlib.Path(__file__).resolve().parents[1]
DIGITS = REPO / ".data" / "mnist_5k"
SEEDS, EPOCHS = (1, 2, 3), 3  # of the accuracies


def rate(value):
    return f"{value:.1f} steps/s"


def milliseconds(value):
    return f"{value:.1f} ms"


def percent(value):
    return f"{value:.2f} %"


class Running:
    """A psd-executor or a psd-trainer, with its output in a file."""

    def __init__(self, stack, folder, name, arguments):
        self.name = name
        self.log = folder / f"{name}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(list(map(str, arguments)), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        stack.callback(self.end)

    def end(self):
        self.process.kill()
        self.process.wait()

    def until(self, what, condition, seconds):
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None:
                raise Failed(f"{self.name}: {last_line(self.text())}")
            if time.monotonic() > deadline:
                raise Failed(f"{self.name}: {what}: timed out after {seconds} s")
            time.sleep(0.02)  # leaves the CPU to the measurement

    def text(self):
        return self.log.read_text(encoding="utf-8", errors="replace")


class Executor(Group):
    name = "executor"
    title = "Forward and backward passes at an executor"
    summary = ("One trainer",)
    text = f"""`psd-trainer --execute` with a `psd-executor` of two workers, each of one thread, beside PyTorch's parameter server tutorial
(`torch.distributed.rpc`), which cannot run two trainers: ConvNet of examples/mnist, batches of 32, plain SGD, hogwild, Unix sockets.
Two stages: cut at `conv2`, 4 micro-batches. CPU time is that of all processes. Accuracy: two trainers, {EPOCHS} epochs each over 4,000
digits, of 1,000 others; the mean of {len(SEEDS)} seeds (least … most)."""
    rounds_max = 5

    def __init__(self, programs, quick):
        super().__init__(programs, quick)
        self.warm, self.steps = (10, 20) if quick else (30, 150)
        self.seeds, self.epochs = (SEEDS[:1], 1) if quick else (SEEDS, EPOCHS)
        self.accuracies = {}  # by whether an executor computes, for each seed

    def measurements(self):
        work = {}
        for weights, trainers in (("stashed", 1), ("stashed", 2), ("live", 1)):
            name = f"{weights} {trainers}"
            work[name] = lambda w=weights, n=trainers: self.measured(self.executed(w, n), "steps_per_s")
            if name == "stashed 1":
                work[f"{name} cpu"] = self.cpu_ms
                if self.programs.python:  # alternates with it
                    work["torch"] = self.tutorial
                    work["torch cpu"] = self.cpu_ms
        work["stages"] = lambda: self.measured(self.executed("stashed", 1, ["--set", 'stages=["conv2"]']), "steps_per_s")
        if DIGITS.is_dir():
            for execute in (True, False):
                work[f"accuracy {execute}"] = lambda e=execute: self.accuracy(e)
        else:
            self.unmeasured.append(f"accuracy: {DIGITS} is not there, which scripts/setup makes")
        if not self.programs.python:
            self.unmeasured.append("PyTorch's RPC: no python3 with torch was found")
        return work

    def cpu_ms(self):
        """For the previous measurement."""
        if not self.last:
            raise Failed("the run that measures both did not end well")
        return self.last["cpu_ms"]

    def measured(self, report, key):
        self.last = report
        return report[key]

    def tutorial(self):
        self.last = {}
        return self.measured(self.programs.torch_rpc_train(self.warm, self.steps), "steps_per_s")

    def executor(self, stack, folder, daemon, *more):
        """An executor that listens, and its address."""
        if not (self.programs.folder / "psd-executor").is_file():
            raise Failed("this build has no psd-executor")
        address = f"unix://{folder}/executor.sock"
        executor = Running(stack, folder, "psd-executor", [
            self.programs.folder / "psd-executor", "--server", daemon.address["unix"], "--listen", address, "--module", "mnist_cnn",
            "--device", "cpu", "--set", "workers=2", *more])
        executor.until("waited for it to listen", lambda: "ready: listening" in executor.text(), READY_S)
        return executor, address

    def accuracy(self, execute):
        """The mean over the seeds; measured once, as it varies little for a seed."""
        if execute not in self.accuracies:
            self.accuracies[execute] = [self.accuracy_of(execute, seed) for seed in self.seeds]
        return statistics.mean(self.accuracies[execute])

    def accuracy_of(self, execute, seed):
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psd-bench-")))
            daemon = stack.enter_context(self.programs.daemon({"threads": 1}))
            if execute:
                where = ["--execute", self.executor(stack, folder, daemon, "--set", f"seed={seed}")[1]]
            else:
                where = ["--server", daemon.address["unix"], "--model", "mnist_cnn", "--device", "cpu", "--threads", 1]
            running = [Running(stack, folder, f"psd-trainer-{rank}", [
                self.programs.folder / "psd-trainer", "train", *where, "--rank", rank, "--world-size", 2, "--data", DIGITS, "--epochs",
                self.epochs, "--seed", seed]) for rank in range(2)]
            for trainer in running:
                if trainer.process.wait(PROGRAM_S) != 0:
                    raise Failed(f"{trainer.name}: {last_line(trainer.text())}")
            return float(re.search(r"rank 0  test .*accuracy ([0-9.]+) %", running[0].text()).group(1))

    def of_seeds(self, execute, value):
        each = self.accuracies.get(execute, [value])  # without a measurement when only the row's name is requested
        return f"{percent(value)} ({percent(min(each))} … {percent(max(each))})"

    def executed(self, weights, trainers, more=()):
        self.last = {}
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psd-bench-")))
            daemon = stack.enter_context(self.programs.daemon({"threads": 1}))
            executor, address = self.executor(stack, folder, daemon, "--set", f'weights="{weights}"', *more)
            files = [folder / f"{rank}.jsonl" for rank in range(trainers)]
            running = [Running(stack, folder, f"psd-trainer-{rank}", [
                self.programs.folder / "psd-trainer", "train", "--execute", address, "--rank", rank, "--world-size", trainers, "--data",
                "synthetic:2048", "--steps", 1_000_000, "--metrics", files[rank]]) for rank in range(trainers)]

            def lines():
                return [file.read_bytes().split(b"\n")[:-1] if file.exists() else [] for file in files]

            def steps():
                """The end of each step, by trainer."""
                return [[json.loads(line)["time"] for line in each] for each in lines()]

            def cpu():
                return sum(processor_seconds(each.process.pid) for each in (daemon, executor, *running))

            def mark(count):
                for trainer in running:
                    trainer.until(f"waited for {count} steps", lambda: min(map(len, lines())) >= count, PROGRAM_S)
                return cpu(), steps()

            before, first = mark(self.warm)
            after, last = mark(self.warm + self.steps)
            begin, end = max(times[-1] for times in first), min(times[-1] for times in last)
            done = sum(sum(begin < at <= end for at in times) for times in last)
            return {"steps_per_s": done / (end - begin),
                    "cpu_ms": (after - before) / (sum(map(len, last)) - sum(map(len, first))) * 1e3}

    def rows(self, medians):
        torch, torch_cpu = medians.get("torch"), medians.get("torch cpu")
        one, two = medians["stashed 1"], medians["stashed 2"]
        executed, own = medians.get("accuracy True"), medians.get("accuracy False")
        return [Row.at_least("One trainer", one, "PyTorch RPC", torch, 1.1, rate),
                Row.at_most("One trainer, CPU a step", medians["stashed 1 cpu"], "PyTorch RPC", torch_cpu, None, milliseconds),
                Row.at_least("One trainer, live", medians["live 1"], "PyTorch RPC", torch, None, rate),
                Row.at_least("One trainer, two stages", medians["stages"], "one stage", one, None, rate),
                Row.at_least("Two trainers", two, "one trainer", one, 1.8, rate),
                Row.at_least("Two trainers, accuracy", executed, "gradients of their own", own, None,
                             tuple(functools.partial(self.of_seeds, execute) for execute in (True, False)))]
