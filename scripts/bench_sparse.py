"""The group of scripts/bench that measures sparse models: reading files of sparse examples, and training on them."""

import itertools
import pathlib
import tempfile

from bench_group import MIB, Group
from bench_report import Row, gigabytes

BATCH = 4_096
CONFIG = {"policy": {"type": "hogwild"}, "optimizer": {"type": "ftrl", "lr": 0.1, "beta": 0.001, "l1": 0.005}, "limits": {"table_bytes": 4 << 30}}
TRAINING = {"logistic": (), "logistic, overlap": ("--prefetch", "--inflight", 1)}


def examples(value):
    return f"{value / 1e6:.2f} M examples/s"


class Sparse(Group):
    name = "sparse"
    title = "Sparse models"
    text = f"""`psd-bench-sparse-files`: one thread, made-up files of 39 features per line, in bytes of text per second of processor time. *check*: every line
is parsed, as at the start of a trainer. *batches*: an epoch in its random order becomes batches of 1,024 examples, hashes of categories
included. *lines*: the file is read and its line ends counted, as by `wc -l`. *scan*: the words of the same bytes in memory are summed.
*zlib*: the compressed file is decompressed, and nothing else.

*logistic*: `psd-trainer train --model logistic` with one thread, batches of {BATCH:,} and FTRL, through shared memory, for an epoch of such a file in
Criteo's format; *overlap*: with `--prefetch --inflight 1`. *one process*: FTRL with a step per example in one thread, without a daemon
(`psd-bench-sparse-training`). Bytes are those of pulled and pushed rows, of which an id of a batch is one."""
    formats = ("criteo", "libsvm")
    figures = ("scan", "lines", "check", "fill", "gz_zlib", "gz_check", "gz_fill")
    target = 0.3e9
    target_examples = 0.2e6

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.bytes = {}  # by name, of an example

    def measurements(self):
        return {**{f"{form} {figure}": lambda f=form, n=figure: self.figure(f, n) for form, figure in itertools.product(self.formats, self.figures)},
                "one process": lambda: self.training()["one process"],
                **{name: lambda n=name: self.trained[n] for name in TRAINING}}

    def figure(self, form, figure):
        """The first figure of a round runs the program."""
        if (form, figure) == (self.formats[0], self.figures[0]):
            self.report = self.programs.sparse_files(64 * MIB)  # less would stay in memory from epoch to epoch
        return self.report[f"{form}_{figure}_bytes_per_s"]

    def training(self):
        """Examples per second, by name, on one file."""
        with tempfile.TemporaryDirectory(prefix="psd-bench-") as folder:
            file, test = pathlib.Path(folder) / "clicks", pathlib.Path(folder) / "test"
            self.trained = {"one process": self.programs.sparse_training(file, (32 if self.quick else 128) * MIB)["examples_per_s"]}
            with open(file, "rb") as lines:
                test.write_bytes(b"".join(itertools.islice(lines, 100)))
            for name, flags in TRAINING.items():
                steps = self.programs.training_steps(CONFIG, "--model", "logistic", "--data", f"criteo:{file}:test={test}", "--batch-size", BATCH,
                                                     "--threads", 1, "--epochs", 1, "--transport", "shm", *flags)
                later = steps[1:]
                self.trained[name] = sum(step["batch"] for step in later) / (later[-1]["time"] - steps[0]["time"])
                self.bytes[name] = sum(step["pull_bytes"] + step["push_bytes"] for step in later) / sum(step["batch"] for step in later)
        return self.trained

    def rows(self, medians):
        rows = []
        for form in self.formats:
            of = {figure: medians[f"{form} {figure}"] for figure in self.figures}
            rows += [Row.floor(f"{form}, check", of["check"], self.target, gigabytes),
                     Row.floor(f"{form}, batches", of["fill"], self.target, gigabytes),
                     Row.at_least(f"{form}, check", of["check"], "lines", of["lines"], None, gigabytes),
                     Row.at_least(f"{form}, batches", of["fill"], "lines", of["lines"], None, gigabytes),
                     Row.at_least(f"{form}, lines", of["lines"], "scan", of["scan"], None, gigabytes),
                     Row.at_least(f"{form}.gz, check", of["gz_check"], "zlib", of["gz_zlib"], None, gigabytes),
                     Row.at_least(f"{form}.gz, batches", of["gz_fill"], "zlib", of["gz_zlib"], None, gigabytes)]
        for name in TRAINING:
            shown = lambda value, n=name: f"{examples(value)}, {self.bytes[n]:.0f} bytes each"
            rows += [Row.floor(name, medians[name], self.target_examples, examples),
                     Row.at_least(name, medians[name], "one process", medians["one process"], None, (shown, examples))]
        return rows
