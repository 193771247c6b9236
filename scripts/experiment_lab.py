"""Tools for the claims of scripts/experiments: a daemon per run, virtual trainers, tables, plots."""

import array
import gzip
import json
import os
import pathlib
import re
import statistics
import struct
import subprocess
import sys
import tempfile

import line_plot
from bench_programs import Daemon, Failed, last_line

REPO = pathlib.Path(__file__).resolve().parents[1]
DONE = re.compile(r"done after .*\((\d+) samples/s\)")
TORCH_LEARNERS = REPO / "test" / "bench" / "torch_diloco.py"
RUN_S = 1200  # maximum for one run
CHANCE = 90.0  # test error in % of guessing one of ten digits: counted for a run that diverged


def values_of(path):
    """The float32 values of a safetensors file, in the order of their offsets."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    return array.array("f", data[8 + size:])


def rows_of(path):
    """{id: value} of a table's file whose rows have one value each."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    places = {name: entry["data_offsets"] for name, entry in json.loads(data[8:8 + size]).items() if name != "__metadata__"}
    part = {name: data[8 + size + begin:8 + size + end] for name, (begin, end) in places.items()}
    return dict(zip(array.array("Q", part["keys"]), array.array("f", part["values"])))


def first_digits(data, count, folder):
    """A folder of MNIST with the first `count` digits of the training set of another, which are also its test set."""
    for name, head, size in ("train-images-idx3-ubyte", 16, 28 * 28), ("train-labels-idx1-ubyte", 8, 1):
        plain = data / name
        content = plain.read_bytes() if plain.exists() else gzip.decompress((data / f"{name}.gz").read_bytes())
        some = content[:4] + struct.pack(">I", count) + content[8:head + count * size]
        for split in ("train", "t10k"):
            (folder / name.replace("train", split)).write_bytes(some)
    return folder


class Lab:
    """Runs psd-trainer simulate, each time with a psd of its own. Reports progress on standard error."""

    def __init__(self, build, data, ratings, text, quick):
        self.bin = build / "bin"
        self.data = data
        self.ratings = ratings  # a folder of MovieLens, or None
        self.text = text  # a file, or None
        self.quick = quick
        for program in ("psd", "psd-trainer"):
            if not (self.bin / program).is_file():
                raise Failed(f"{self.bin / program} is missing; scripts/test builds it")

    def seeds(self, wanted):
        return range(1, 2 if self.quick else wanted + 1)

    def steps(self, wanted):
        """Fewer steps with --quick; a multiple of every number of trainers in rounds."""
        return wanted if not self.quick else max(wanted // 10 // 264 * 264, 264)

    def daemon(self, folder, policy, optimizer, **config):
        return Daemon(self.bin / "psd", folder, {"device": "cpu", "policy": policy, "optimizer": optimizer, **config})

    def ask(self, *arguments):
        """The JSON object that psd-trainer prints."""
        done = subprocess.run([self.bin / "psd-trainer", *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=RUN_S, check=False)
        if done.returncode != 0:
            raise Failed(f"psd-trainer {arguments[0]}: {last_line(done.stderr)}")
        return json.loads(done.stdout)

    def simulate(self, policy, optimizer, *, data=None, model="mlp", keep=False, config=None, **flags):
        """The report of a simulation. Flags are named like the options. `keep`: includes the final parameters,
        "values". `config`: further keys of the daemon's configuration."""
        options = [item for name, value in flags.items() for item in (f"--{name.replace('_', '-')}", value)]
        with tempfile.TemporaryDirectory(prefix="psd-") as name:
            folder = pathlib.Path(name)
            saved = {"save": str(folder / "model.safetensors")} if keep else {}
            daemon = self.daemon(folder, policy, optimizer, **saved, **(config or {}))
            try:
                daemon.await_ready()
                report = self.ask("simulate", "--server", daemon.address["unix"], "--log-level", "error", "--model", model,
                                  "--data", data or self.data, "--json", *options)
            finally:
                daemon.end()
            if keep:
                report["values"] = values_of(folder / "model.safetensors")
        return report

    def train_together(self, policy, optimizer, trainers, groups, *arguments):
        """The report of eval after concurrent training by real trainers, each a process; with their total
        "samples_per_s"."""
        with tempfile.TemporaryDirectory(prefix="psd-") as folder:
            daemon = self.daemon(pathlib.Path(folder), policy, optimizer, groups=groups)
            running = []
            try:
                daemon.await_ready()
                where = ("--server", daemon.address["unix"], "--log-level", "error", *map(str, arguments))
                for rank in range(trainers):
                    running.append(subprocess.Popen(
                        [self.bin / "psd-trainer", "train", "--rank", str(rank), "--world-size", str(trainers), "--threads", "1", *where],
                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
                told = [trainer.communicate(timeout=RUN_S)[0] for trainer in running]
                if any(trainer.returncode for trainer in running):
                    raise Failed("psd-trainer train failed")
                model_and_data = [item for flag in ("--model", "--data", "--seed") for item in (flag, where[where.index(flag) + 1])]
                rates = [int(found.group(1)) for found in map(DONE.search, told)]
                return {**self.ask("eval", *where[:4], *model_and_data, "--json"), "samples_per_s": sum(rates)}
            finally:
                for trainer in running:
                    trainer.kill()
                    trainer.wait()
                daemon.end()

    def python(self):
        """The Python that the build's package is for, and the folder of the package."""
        package, installed = self.bin.parent / "python", REPO / ".deps" / "python" / "bin" / "python3"
        if not any(package.glob("psd/_psd*.so")):
            raise Failed("this build has no Python package, which this measurement needs")
        return installed if installed.exists() else sys.executable, package

    def by_torch(self, kind, period, seed):
        """The losses that test/bench/torch_diloco.py reports for PyTorch's learners and psd's."""
        python, package = self.python()
        with tempfile.TemporaryDirectory(prefix="psd-") as folder:
            told = subprocess.run([python, TORCH_LEARNERS, kind, "--period", str(period), "--rules"], stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, check=False, timeout=RUN_S)
            if told.returncode != 0:  # PyTorch is missing, for example
                raise Failed(f"{TORCH_LEARNERS.name}: {last_line(told.stderr)}")
            rules = json.loads(told.stdout)
            daemon = self.daemon(pathlib.Path(folder), rules["policy"], rules["optimizer"])
            try:
                daemon.await_ready()
                done = subprocess.run([python, TORCH_LEARNERS, kind, daemon.address["unix"], "--text", self.text, "--period", str(period),
                                       *(("--rounds", "4") if self.quick else ()), "--seed", str(seed)],
                                      stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(package)}, capture_output=True, text=True,
                                      timeout=RUN_S, check=False)
            finally:
                daemon.end()
        if done.returncode != 0:
            raise Failed(f"{TORCH_LEARNERS.name}: {last_line(done.stderr)}")
        return json.loads(done.stdout)

    def race(self, policy, trainers, pushes):
        """Concurrent trainers that count in rows: for all increments, and for those of the most frequent row, (pushed,
        found)."""
        program = REPO / "test" / "bench" / "racing_rows.py"
        python, package = self.python()
        with tempfile.TemporaryDirectory(prefix="psd-") as folder:
            saved = pathlib.Path(folder) / "saved"
            daemon = self.daemon(pathlib.Path(folder), policy, {"type": "sgd", "lr": 1}, durability={"type": "checkpoint", "path": str(saved)})
            running = []
            try:
                daemon.await_ready()
                for rank in range(trainers):
                    running.append(subprocess.Popen([python, program, daemon.address["unix"], str(rank), str(trainers), str(pushes),
                                                     "--package", package], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True))
                told = [trainer.communicate(timeout=RUN_S)[0] for trainer in running]
                if any(trainer.returncode for trainer in running):
                    raise Failed("racing_rows.py failed")
                file = pathlib.Path(folder) / "rows.safetensors"
                for command in (("checkpoint", "--server", daemon.address["unix"]), ("export", saved, "--table", "weights", "--to", file)):
                    subprocess.run([self.bin / "psd", *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
            finally:
                for trainer in running:
                    trainer.kill()
                    trainer.wait()
                daemon.end()
            found = rows_of(file)
        pushed = [json.loads(lines) for lines in told]
        return [(sum(of["pushed"] for of in pushed), -sum(found.values())), (sum(of["commonest"] for of in pushed), -found[0])]

    def over_seeds(self, count, what, **arguments):
        """The reports of runs with other seeds."""
        print(f"  {what}", file=sys.stderr)
        return [self.simulate(seed=seed, **arguments) for seed in self.seeds(count)]


def error(report):
    """Test error in %."""
    return CHANCE if report["diverged"] else 100 - 100 * report["score"]["accuracy"]


def curve(report, x, y="error"):
    """[(x, y)], x "step" or "time", y the test error in % or a figure of the scores."""
    return [(score[x], 100 - 100 * score["accuracy"] if y == "error" else score[y]) for score in report["scores"]]


def mean_curve(reports, x="step", y="error"):
    """The mean of curves with points at the same x, as far as all of them extend."""
    return [(points[0][0], statistics.mean(value for _, value in points)) for points in zip(*(curve(report, x, y) for report in reports))]


def spread(values, digits=1):
    """ "7.3–8.1" """
    low, high = min(values), max(values)
    return f"{low:.{digits}f}–{high:.{digits}f}" if f"{low:.{digits}f}" != f"{high:.{digits}f}" else f"{low:.{digits}f}"


def errors(reports):
    """The range of the test errors, and the number of runs that diverged."""
    diverged = sum(bool(report["diverged"]) for report in reports)
    return spread([error(report) for report in reports]) + (f" ({diverged} of {len(reports)} diverged)" if diverged else "")


def mean_error(reports):
    return statistics.mean(error(report) for report in reports)


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(map(str, row)) + " |" for row in rows), ""]


def verdict(checks):
    """A sentence for each (claim, whether it was confirmed)."""
    return [*(f"- {'Confirmed' if held else '**Not confirmed**'}: {claim}." for claim, held in checks), ""]


class Pictures:
    """The folder for plots; None: they are not written."""

    def __init__(self, folder):
        self.folder = folder
        if folder is not None:
            line_plot.need()

    def lines(self, name, title, x, y, curves, y_range, x_scale="linear"):
        """The lines of the page that show the plot."""
        if self.folder is None:
            return []
        self.folder.mkdir(exist_ok=True)
        (self.folder / f"{name}.svg").write_text(line_plot.plot(title, x, y, curves, y_range, x_scale), encoding="utf-8")
        return [f"![{title}](../pictures/{name}.svg)", ""]
