"""The group of scripts/bench that measures the cost of a dead DiLoCo learner for the others, compared with torchft, and
of a slow one."""

import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time

from bench_group import Group
from bench_programs import PROGRAM_S, READY_S, Daemon, Failed, last_line
from bench_report import Row, milliseconds

LEARNERS, PERIOD = 2, 20  # with more learners torchft alternates the members of rounds on few cores
RUNS = 3
WATCH_S = 7.0  # after the fault
TARGET_S = 1.0
WARM_STEPS = 200
LOOK_S = 0.05
FAULTS = {"kill": ("`kill -9`", signal.SIGKILL), "freeze": ("SIGSTOP", signal.SIGSTOP)}
POLICY = {"type": "diloco", "period": PERIOD, "inner": {"type": "adamw", "lr": 0.001}, "start_trainers": LEARNERS, "quorum": 1, "grace_ms": "auto",
          "grace_max_ms": 1000}
# One of these is slower; each sleeps for most of a step, so that cores do not matter.
PACED, PACED_STEP_MS, SLOWER, PACED_PERIOD, PACED_ROUNDS = 4, 20, 4, 50, 3
WAITING = {"waits for all": {}, "`quorum` 3, `grace_ms` \"auto\"": {"quorum": 3, "grace_ms": "auto"}}
WAITING_TARGET, PACED_BATCH = 2.8, 32  # samples of a step, given to the learners
PACED_LEARNER = pathlib.Path(__file__).resolve().parents[1] / "test" / "bench" / "paced_learner.py"
OUTER = {"type": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}


class Learner:
    """A process that writes the ends of its steps to a file, which `times` parses."""

    def __init__(self, stack, name, program, steps, times, **options):
        self.name, self.steps, self.times = name, steps, times
        self.process = subprocess.Popen(list(map(str, program)), stdin=subprocess.DEVNULL, **options)
        stack.callback(lambda: (self.process.kill(), self.process.wait()))

    def ends(self):
        lines = self.steps.read_text(encoding="utf-8").splitlines() if self.steps.exists() else []
        return self.times(lines[:-1])  # the last line may be incomplete

    def await_steps(self, count):
        deadline = time.monotonic() + PROGRAM_S
        while len(self.ends()) < count:
            if self.process.poll() is not None:
                raise Failed(f"{self.name} ended with status {self.process.returncode}")
            if time.monotonic() > deadline:
                raise Failed(f"{self.name} did not take {count} steps in {PROGRAM_S} s")
            time.sleep(LOOK_S)


def longest_gap(learner, moment):
    """The longest time between two steps, among those that end after the moment, or have not ended yet."""
    ends = [*learner.ends(), time.time()]
    return max(after - before for before, after in zip(ends, ends[1:]) if after >= moment)


class Learners(Group):
    name = "learners"
    title = "Learners that die"
    text = f"""{LEARNERS} learners of DiLoCo, one killed or stopped: the longest time between two steps of the other in the
{WATCH_S:g} s after it, {RUNS} runs each.
`mlp`, batches of 32, `period` {PERIOD}, `quorum` 1, `grace_ms` `"auto"`, `grace_max_ms` 1000; beside torchft's DiLoCo (lighthouse, Gloo,
time limits of 10 s).

Last row: {PACED} learners of `psd.torch.DiLoCo` together, steps of {PACED_STEP_MS} ms, of one {SLOWER} times as long; `period` {PACED_PERIOD}."""
    rounds_max = 1

    def measurements(self):
        self.seen = {}
        sides = {"psd": self.ours}
        if self.programs.python and subprocess.run([self.programs.python, "-c", "import torchft"], capture_output=True, check=False).returncode == 0:
            sides["torchft"] = self.theirs
        else:
            self.unmeasured.append("torchft: it is not installed (pip install torchft)")
        paced = {}
        if self.programs.has_package():
            paced = {f"paced {name}": lambda rules=rules: self.paced_rate(rules) for name, rules in WAITING.items()}
        else:
            self.unmeasured.append("a slow learner: this build has no Python package, or no python3 with torch was found")
        return paced | {f"{side} {fault}": lambda start=start, side=side, fault=fault: self.gaps(side, start, fault)
                for fault in FAULTS for side, start in sides.items()}

    def gaps(self, side, start, fault):
        for _ in range(RUNS):
            with contextlib.ExitStack() as stack:
                folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psd-bench-")))
                learners = start(stack, folder)
                for learner in learners:
                    learner.await_steps(WARM_STEPS)
                moment = time.time()
                learners[-1].process.send_signal(FAULTS[fault][1])
                time.sleep(WATCH_S)
                for learner in learners[:-1]:
                    if learner.process.poll() is not None:
                        raise Failed(f"{learner.name} ended with status {learner.process.returncode} after another one's death")
                self.seen.setdefault((fault, side), []).append(max(longest_gap(learner, moment) for learner in learners[:-1]))
        return max(self.seen[fault, side])

    def daemon(self, stack, folder, policy, learners):
        """A daemon that is reachable until the stack closes."""
        daemon = Daemon(self.programs.folder / "psd", folder, {"policy": policy, "optimizer": OUTER, "world_size": learners})
        stack.callback(daemon.end)
        daemon.await_ready()
        return daemon

    def paced_rate(self, rules):
        """Samples per second of all learners, of which one is slow."""
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psd-bench-")))
            daemon = self.daemon(stack, folder, {"type": "diloco", "period": PACED_PERIOD, "start_trainers": PACED, **rules}, PACED)
            learners = []
            for rank in range(PACED):
                steps = folder / f"steps-{rank}"
                step_ms = PACED_STEP_MS * (SLOWER if rank == PACED - 1 else 1)
                with open(steps, "wb") as out:
                    learners.append(Learner(stack, PACED_LEARNER.name, [self.programs.python, PACED_LEARNER, daemon.address["tcp"], rank, PACED, step_ms,
                                                                      PACED_BATCH],
                                            steps, lambda lines: list(map(float, lines)), stdout=out, stderr=subprocess.DEVNULL,
                                            env={**os.environ, "PYTHONPATH": str(self.programs.package())}))
            slow = learners[-1]
            slow.await_steps(PACED_PERIOD)
            begin = slow.ends()[-1]
            seconds = PACED_ROUNDS * PACED_PERIOD * SLOWER * PACED_STEP_MS / 1000
            slow.await_steps(len(slow.ends()) + int(1.1 * seconds * 1000 / (SLOWER * PACED_STEP_MS)))
            end = begin + seconds
            return sum(begin < moment <= end for learner in learners for moment in learner.ends()) * PACED_BATCH / seconds

    def ours(self, stack, folder):
        daemon = self.daemon(stack, folder, POLICY, LEARNERS)
        learners = []
        for rank in range(LEARNERS):
            steps = folder / f"metrics-{rank}"
            program = [self.programs.folder / "psd-trainer", "train", "--server", daemon.address["tcp"], "--rank", rank, "--world-size", LEARNERS,
                       "--model", "mlp", "--data", "synthetic:4096", "--batch-size", 32, "--threads", 1, "--device", "cpu", "--steps", 10**9,
                       "--metrics", steps]
            learners.append(Learner(stack, "psd-trainer", program, steps, lambda lines: [json.loads(line)["time"] for line in lines],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return learners

    def theirs(self, stack, folder):
        program = [self.programs.python, pathlib.Path(__file__).resolve().parents[1] / "test" / "bench" / "torchft_learner.py"]
        with open(folder / "lighthouse.log", "wb") as log:
            lighthouse = subprocess.Popen([*program, "--lighthouse"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        stack.callback(lambda: (lighthouse.kill(), lighthouse.wait()))
        timer = time.monotonic() + READY_S
        at = lighthouse.stdout.readline().strip()
        if not at or time.monotonic() > timer:
            raise Failed(f"torchft's lighthouse: {last_line((folder / 'lighthouse.log').read_text(encoding='utf-8'))}")
        learners = []
        for replica in range(LEARNERS):
            steps = folder / f"steps-{replica}"
            with open(steps, "wb") as out:
                learners.append(Learner(stack, "torchft_learner.py", [*program, "--at", at, "--replica", replica, "--period", PERIOD], steps,
                                        self.whole_rounds, stdout=out, stderr=subprocess.DEVNULL,
                                        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}))
        return learners

    @staticmethod
    def whole_rounds(lines):
        """The ends of steps, starting with the first one in whose round all learners took part."""
        steps = [line.split() for line in lines]
        first = next((place for place, (_, taking) in enumerate(steps) if int(taking) == LEARNERS), len(steps))
        return [float(end) for end, _ in steps[first:]]

    def rows(self, medians):
        return [Row.at_least(f"one of {PACED} learners {SLOWER} times slower: {name}", medians[f"paced {name}"], barrier, medians[f"paced {barrier}"],
                             WAITING_TARGET, lambda rate: f"{rate:,.0f} samples/s")
                for barrier, name in [WAITING] if f"paced {name}" in medians]

    def tables(self, medians, rounds=()):
        lines = ["| fault of one learner | | runs | median gap of the other | longest gap | target |", "|---|---|---|---|---|---|"]
        for (fault, side), gaps in self.seen.items():
            lines.append(f"| {FAULTS[fault][0]} | {side} | {len(gaps)} | {milliseconds(statistics.median(gaps))} | {milliseconds(max(gaps))} | "
                         f"{'≤ ' + milliseconds(TARGET_S) if side == 'psd' else ''} |")
        return ["\n".join(lines), *super().tables(medians, rounds)]
