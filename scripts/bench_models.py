"""The group of scripts/bench that measures steps of models with embedding tables."""

import statistics

from bench_group import Group
from bench_report import Row, milliseconds

BATCH, STEPS, WARM_UP = 2_048, 150, 30
CONFIG = {"policy": {"type": "hogwild"}, "optimizer": {"type": "adagrad", "lr": 0.02}}


class TableModels(Group):
    name = "models"
    title = "Steps of models with tables"
    text = f"""A step of `dlrm` (26 tables of 16 floats, Adagrad, batches of {BATCH:,}, one computing thread), from the end of one step to that of the
next, in the median: `psd-trainer train` over a Unix socket, its made-up clicks and the lookups by 64-bit id included, against the same
networks in one process of PyTorch whose tables are `EmbeddingBag(sparse=True)`, on batches of row numbers that were made before
(`test/bench/torch_dlrm.py`)."""
    rounds_max = 5

    def measurements(self):
        if not self.programs.python:
            self.unmeasured.append("steps of dlrm: no python3 with torch (name one by PSD_PYTHON)")
            self.rounds_max = 1
            return {"nothing": lambda: 0}
        return {"alone": lambda: self.programs.torch_dlrm(BATCH)["median_s"],
                "daemon": self.step,
                "prefetch": lambda: self.step("--prefetch")}

    def step(self, *flags):
        steps = self.programs.training_steps(CONFIG, "--model", "dlrm", "--data", f"clicks:samples={BATCH * STEPS}", "--batch-size",
                                             BATCH, "--threads", 1, "--epochs", 1, *flags)
        return statistics.median(step["batch"] / step["samples_per_s"] for step in steps[WARM_UP:])

    def rows(self, medians):
        if "nothing" in medians:
            return []
        return [Row.at_most("step of dlrm", medians["daemon"], "EmbeddingBag in one process", medians["alone"], 1.3, milliseconds),
                Row.at_most("step of dlrm, prefetch", medians["prefetch"], "EmbeddingBag in one process", medians["alone"], 1.1,
                            milliseconds)]
