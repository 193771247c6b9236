"""The group of scripts/bench that measures steps of models with embedding tables."""

import contextlib
import functools
import json
import pathlib
import statistics
import subprocess
import tempfile

from bench_group import Group
from bench_programs import PROGRAM_S, Failed, last_line
from bench_report import Row, milliseconds

BATCH, STEPS, WARM_UP = 2_048, 150, 30
CONFIG = {"policy": {"type": "hogwild"}, "optimizer": {"type": "adagrad", "lr": 0.02}}
TRAINERS, SHARE, STEPS_TOGETHER = 2, 256, 600  # per trainer: samples of a step, and steps
SCALE = 1000
CLICKS = f"clicks:samples={TRAINERS * SHARE * STEPS_TOGETHER},scale={SCALE}"
# Training of the dense part, by name: its policy and the number of trainers.
DENSE = {"one trainer": ({"type": "locked"}, 1), "sync": ({"type": "sync"}, TRAINERS),
         "locked": ({"type": "locked"}, TRAINERS), "allreduce": ({"type": "allreduce", "start_trainers": TRAINERS}, TRAINERS)}


class TableModels(Group):
    name = "models"
    title = "Steps of models with tables"
    text = f"""The median step of `dlrm` (26 tables of 16 floats, Adagrad, batches of {BATCH:,}, one computing thread): `psd-trainer train` over a Unix
socket beside PyTorch with `EmbeddingBag(sparse=True)` (`test/bench/torch_dlrm.py`).

*together*: `{CLICKS}`, tables under `hogwild` with `rowwise_adagrad`, the rest with Adam by
the policy named; {TRAINERS} trainers, one thread and batches of {SHARE} each, {STEPS_TOGETHER} steps over TCP; AUC of held-out clicks."""
    rounds_max = 3

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.kilobytes, self.auc = {}, {}  # by name, for each round

    def measurements(self):
        if not self.programs.python:
            self.unmeasured.append("steps of dlrm: no python3 with torch (name one by PSD_PYTHON)")
            self.rounds_max = 1
            return {"nothing": lambda: 0}
        return {"alone": lambda: self.programs.torch_dlrm(BATCH)["median_s"],
                "daemon": self.step,
                "prefetch": lambda: self.step("--prefetch"),
                **{f"together, {name}": lambda n=name: self.together(n) for name in DENSE},
                "together, PyTorch": self.in_one_process}

    def step(self, *flags):
        steps = self.programs.training_steps(CONFIG, "--model", "dlrm", "--data", f"clicks:samples={BATCH * STEPS}", "--batch-size",
                                             BATCH, "--threads", 1, "--epochs", 1, *flags)
        return statistics.median(step["batch"] / step["samples_per_s"] for step in steps[WARM_UP:])

    def in_one_process(self):
        """Samples per second of PyTorch."""
        report = self.programs.torch_dlrm(SHARE, TRAINERS * STEPS_TOGETHER, SCALE)
        self.auc.setdefault("PyTorch", []).append(report["auc"])
        return SHARE / report["median_s"]

    def together(self, name):
        """Samples per second of all trainers."""
        policy, trainers = DENSE[name]
        steps = STEPS_TOGETHER * TRAINERS // trainers
        config = {"policy": policy, "optimizer": {"type": "adam", "lr": 0.001}, "limits": {"table_bytes": 4 << 30},
                  "groups": [{"match": "category*", "policy": {"type": "hogwild"}, "optimizer": {"type": "rowwise_adagrad", "lr": 0.05}}]}
        with contextlib.ExitStack() as stack:
            daemon = stack.enter_context(self.programs.daemon(config))
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psd-bench-")))
            program, common = str(self.programs.folder / "psd-trainer"), ["--server", daemon.address["tcp"], "--model", "dlrm", "--data", CLICKS]
            running = []
            for rank in range(trainers):
                command = [program, "train", *common, "--rank", rank, "--world-size", trainers, "--batch-size", SHARE, "--threads", 1, "--steps", steps,
                           "--transport", "rpc", "--metrics", folder / str(rank)]
                running.append(subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                                text=True))
                stack.callback(lambda p=running[-1]: (p.kill(), p.wait()))
            for trainer in running:
                errors = trainer.communicate(timeout=PROGRAM_S)[1]
                if trainer.returncode != 0:
                    raise Failed(f"psd-trainer train: {last_line(errors)}")
            counters = daemon.status()["counters"]
            self.kilobytes.setdefault(name, []).append((counters["push_bytes"] + counters["pull_bytes"]) / (steps * trainers) / 1e3)
            scored = subprocess.run([program, "eval", *common, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
            self.auc.setdefault(name, []).append(json.loads(scored.stdout)["auc"])
            rates = []
            for rank in range(trainers):
                lines = [json.loads(line) for line in (folder / str(rank)).read_text(encoding="utf-8").splitlines()]
                lines = [line for line in lines if "samples_per_s" in line][WARM_UP:]
                rates.append(sum(line["batch"] for line in lines) / sum(line["batch"] / line["samples_per_s"] for line in lines))
        return sum(rates)

    def shown(self, name, rate):
        if name == "PyTorch":
            return f"{rate:,.0f} samples/s, AUC {statistics.median(self.auc[name]):.3f}"
        return f"{rate:,.0f} samples/s, {statistics.median(self.kilobytes[name]):.0f} kB per step, AUC {statistics.median(self.auc[name]):.3f}"

    def rows(self, medians):
        if "nothing" in medians:
            return []
        steps = [Row.at_most(f"step of dlrm{what}", medians[name], "EmbeddingBag in one process", medians["alone"], target, milliseconds)
                 for what, name, target in (("", "daemon", 1.3), (", prefetch", "prefetch", 1.1))]
        first, *others = DENSE
        alone, torch = (medians[f"together, {name}"] for name in (first, "PyTorch"))
        shown = lambda *names: tuple(functools.partial(self.shown, name) for name in names)
        beside = Row.at_least(f"together, {first}", alone, "PyTorch, one process", torch, None, shown(first, "PyTorch"))
        return [*steps, beside] + [Row.at_least(f"together, {name}", medians[f"together, {name}"], first, alone, None, shown(name, first))
                                   for name in others]
