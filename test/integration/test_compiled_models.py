"""A user's own model as machine code, .pt2: it trains like the same class as TorchScript, is scored, and is refused if
wrong.

Compiling takes half a minute of CPU, so all tests share one model.
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import unittest
import zipfile

import processes

PYTHON = os.environ.get("PSD_PYTHON")
EXPORT = processes.REPO / "scripts" / "export_model"
COMPILER = os.environ.get("CXX", "g++")  # as AOTInductor chooses it
FINDS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"

# A table, a buffer, a frozen parameter and dropout, which a column enables.
MODEL = """
from typing import Dict

import torch
from torch import Tensor, nn
from torch.nn import functional


class Base(nn.Module):
    columns = {"x": "f32", "y": "f32", "user": "i64", "noise": "f32", "inside": "i64 below 2"}

    def __init__(self, hidden: int = 8):
        super().__init__()
        self.first = nn.Linear(2, hidden)
        self.register_buffer("shift", torch.tensor([0.25]))
        self.scale = nn.Parameter(torch.tensor([1.5]), requires_grad=False)
        self.second = nn.Linear(hidden + 3, 2)

    def points(self, batch: Dict[str, Tensor]) -> Tensor:
        return torch.stack([batch["x"], batch["y"]], 1) * self.scale + self.shift


class Points(Base):
    metrics = {"accuracy": "share", "auc": "auc"}
    tables = {"user": {"dim": 3, "scale": 0.5, "rows": {"user.rows": "user"}}}

    def __init__(self, hidden: int = 8):
        super().__init__(hidden)
        self.kinds = nn.Embedding(4, hidden)  # by an index that no column has as it is
        nn.init.zeros_(self.kinds.weight)

    def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
        hidden = torch.tanh(self.first(self.points(batch)) + self.kinds(batch["noise"].to(torch.int64)))
        hidden = hidden + batch["noise"].unsqueeze(1) * functional.dropout(torch.ones_like(hidden), 0.5, self.training)
        answers = self.second(torch.cat([hidden, batch["user.rows"]], 1))
        inside = batch["inside"]
        if self.training:
            return {"loss": functional.cross_entropy(answers, inside)}
        right = answers.argmax(1).eq(inside)
        return {"loss": functional.cross_entropy(answers, inside),
                "accuracy": torch.stack([right.sum(), torch.ones_like(right).sum()]),
                "auc": torch.stack([answers[:, 1] - answers[:, 0], inside.float()], 1)}


class Branches(Base):
    def forward(self, batch):
        out = self.first(self.points(batch))
        return {"loss": out.mean() if out.size(0) > 4 else out.sum()}


class Odd(Base):
    def forward(self, batch):
        out = self.first(self.points(batch))
        return {"loss": out.mean() if out.size(0) % 2 == 0 else out.sum()}


class Sizes(Base):
    def forward(self, batch):
        return {"loss": self.first(self.points(batch)).mean() * torch.tensor(float(batch["x"].size(0)))}


class Looks(Base):
    def forward(self, batch):
        out = self.first(self.points(batch)).mean()
        return {"loss": out if bool(out > 0) else -out}


class Counts(Base):
    def forward(self, batch):
        if not self.training:
            self.shift += 1
        return {"loss": self.first(self.points(batch)).mean()}


class Longer(Points):
    columns = {**Base.columns, "x": "f32[any]"}


class More(Base):
    def forward(self, batch):
        out = self.first(self.points(batch))
        return {"loss": out.mean(), "extra": out.sum()}


class Tables(Base):
    tables = {"user": {"rows": ["user"]}}

    def forward(self, batch):
        return {"loss": self.first(self.points(batch)).mean()}


class Alone(nn.Module):
    columns = {"user": "i64"}
    tables = {"user": {"dim": 3, "rows": {"user.rows": "user"}}}

    def forward(self, batch):
        return {"loss": batch["user.rows"].mean()}


class Indexed(Base):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(100, 2)

    def forward(self, batch):
        return {"loss": self.first(self.points(batch)).mean() + self.users(torch.clamp(batch["user"], max=99)).mean()}


class Smaller(Base):
    columns = {**Base.columns, "inside": "i64 below 3"}

    def forward(self, batch):
        return {"loss": functional.cross_entropy(self.first(self.points(batch))[:, :2], batch["inside"])}


class Throws(Base):
    def forward(self, batch):
        raise ValueError("not today")
"""


# Exports several at once, as PyTorch takes seconds to import. Their names are the arguments.
REFUSALS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import export_model
for name in sys.argv[2:]:
    try:
        name, *arguments = name.split()
        export_model.export(f"points.py:{name}", f"{name}.pt2", 1, arguments)
        print(json.dumps("exported"))
    except export_model.Refused as refusal:
        print(json.dumps(str(refusal)))
"""


def csv(rows, seed, noise=0):
    """Distinct rows; the last batch of 32 has one sample."""
    numbers = random.Random(seed)
    lines = ["x f32,y f32,user i64,noise f32,inside i64"]
    for _ in range(rows):
        x, y, user = round(numbers.uniform(-1, 1), 4), round(numbers.uniform(-1, 1), 4), numbers.randrange(20)
        lines.append(f"{x},{y},{user},{noise},{int(x * x + y * y < 0.6) if user else 1}")
    return "\n".join(lines) + "\n"


def repack(source, to, changes):
    """The archive with some files changed: to bytes, to None (removed), or by a function of the content."""
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(to, "w", zipfile.ZIP_STORED) as made:
        for name in archive.namelist():
            content = archive.read(name)
            for end, change in changes.items():
                if name.endswith(end):
                    content = change(content) if callable(change) else change
            if content is not None:
                made.writestr(name, content)


def manifest(**values):
    return {"psd_step.json": lambda content: json.dumps({**json.loads(content), **values}).encode()}


def lacking():
    """The reason why exporting is impossible here, or None."""
    if not PYTHON or subprocess.run([PYTHON, "-c", FINDS_TORCH], stdin=subprocess.DEVNULL, check=False).returncode != 0:
        return "no python with torch is named by PSD_PYTHON"
    return None if shutil.which(COMPILER) else f"{COMPILER} is not there, with which AOTInductor compiles"


LACKING = lacking()


@unittest.skipIf(LACKING, LACKING)
class CompiledModels(processes.ProcessTest):
    @classmethod
    def setUpClass(cls):
        cls.models = tempfile.TemporaryDirectory(prefix="psd-models-")
        cls.addClassCleanup(cls.models.cleanup)
        folder = pathlib.Path(cls.models.name)
        (folder / "points.py").write_text(MODEL, encoding="utf-8")
        (folder / "train.csv").write_text(csv(193, 1), encoding="utf-8")
        (folder / "noisy.csv").write_text(csv(193, 1, noise=3), encoding="utf-8")
        (folder / "test.csv").write_text(csv(65, 2), encoding="utf-8")
        cls.data = f"{folder}/train.csv:test={folder}/test.csv"
        cls.noisy = f"{folder}/noisy.csv:test={folder}/test.csv"
        for suffix in ("pt", "pt2"):
            done = cls.export("points.py:Points", "-o", f"points.{suffix}", "hidden=10")
            assert done.returncode == 0, done.stderr
            assert done.stdout == f"points.{suffix}: 98 parameters in 5 tensors\n", done.stdout
        cls.script, cls.compiled = str(folder / "points.pt"), str(folder / "points.pt2")

    @classmethod
    def export(cls, *arguments):
        return subprocess.run([str(EXPORT), *arguments], capture_output=True, text=True, cwd=cls.models.name, stdin=subprocess.DEVNULL,
                              timeout=400, check=False)

    def trainer(self, address, model, data=None, *more):
        scratch = self.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        return self.start_trainer("train", "--server", address, "--model", model, "--data", data or self.data, "--threads", 1, "--device", "cpu",
                                  *more, environment={"TMPDIR": str(scratch)})

    def score(self, daemon, model):
        scored = self.start_trainer("eval", "--server", daemon.address, "--model", model, "--data", self.data, "--threads", 1, "--device", "cpu",
                                    "--json")
        self.assert_ends(scored)
        return json.loads(scored.out)

    def losses(self, name):
        return [json.loads(line)["loss"] for line in (self.folder / name).read_text(encoding="utf-8").splitlines()]

    def test_kernels_have_vector_instructions(self):
        if not {"avx2", "asimd"} & set(pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split()):
            self.skipTest("this CPU has none that Inductor uses")
        with zipfile.ZipFile(self.compiled) as archive:
            for graph in ("step", "score"):
                sources = [archive.read(name).decode() for name in archive.namelist() if f"/{graph}/" in name and name.endswith(".cpp")]
                self.assertTrue(any("at::vec::Vectorized<" in source for source in sources), graph)

    def test_it_trains_as_the_class_does(self):
        daemons, losses = {}, {}
        for kind, model in (("pt", self.script), ("pt2", self.compiled)):
            daemons[kind] = self.daemon(listen=(self.unix_address(kind),), policy="locked", optimizer='{"type":"sgd","lr":0.5}',
                                        durability={"type": "checkpoint", "path": str(self.folder / f"saved-{kind}")})
            trainer = self.trainer(daemons[kind].address, model, None, "--epochs", 20, "--batch-size", 32, "--inflight", 0,
                                   "--metrics", self.folder / f"{kind}.jsonl")
            self.assert_ends(trainer)
            self.assertRegex(trainer.out, r"test loss 0\.\d{4}, accuracy \d{2,3}\.\d\d %, auc [01]\.\d{4} on 65 rows")
            losses[kind] = self.losses(f"{kind}.jsonl")
        self.assertEqual(len(losses["pt2"]), 20 * 7)  # the last batch of an epoch has one sample
        for step, (one, other) in enumerate(zip(losses["pt"], losses["pt2"])):
            self.assertAlmostEqual(one, other, delta=1e-5, msg=f"step {step}")
        self.assertEqual(list((self.folder / "scratch").iterdir()), [])
        # Either file scores the parameters that the other one trained.
        scores = [self.score(daemons[kind], model) for kind in daemons for model in (self.script, self.compiled)]
        for score in scores:
            self.assertEqual((score["model"], score["samples"]), ("points", 65))
            for name in ("loss", "accuracy", "auc"):
                self.assertAlmostEqual(score[name], scores[0][name], delta=1e-5, msg=name)
        self.assertLess(scores[0]["loss"], 0.9 * losses["pt"][0])  # it has learned
        for daemon in daemons.values():
            self.assert_stops(daemon)
        tensors = []
        for kind in daemons:
            exported = self.folder / f"{kind}.safetensors"
            self.assert_ends(self.start_psd("export", self.folder / f"saved-{kind}", "--to", exported))
            tensors.append(processes.safetensors(exported))
        self.assertEqual(list(tensors[0]), list(tensors[1]))
        for name, (shape, values) in tensors[0].items():
            self.assertEqual(shape, tensors[1][name][0], name)
            for one, other in zip(values, tensors[1][name][1]):
                self.assertAlmostEqual(one, other, delta=1e-5, msg=name)

    @processes.long_test
    def test_random_numbers_differ_in_each_step_and_follow_the_seed(self):
        runs = []
        for seed in (1, 1, 2):
            # With a rate of 0 nothing is learned, so different losses in an epoch mean different masks.
            daemon = self.daemon(listen=(self.unix_address(f"{len(runs)}"),), policy="locked", optimizer='{"type":"sgd","lr":1e-30}')
            trainer = self.trainer(daemon.address, self.compiled, self.noisy, "--epochs", 4, "--batch-size", 193, "--seed", seed, "--metrics",
                                   self.folder / f"{len(runs)}.jsonl")
            self.assert_ends(trainer)
            runs.append(self.losses(f"{len(runs)}.jsonl"))
        self.assertEqual(runs[0], runs[1])
        for seed in (0, 2):
            self.assertEqual(len({round(loss, 6) for loss in runs[seed]}), 4, runs[seed])
        self.assertFalse(set(runs[0]) & set(runs[2]))

    def test_an_index_that_is_out_of_range_ends_the_trainer_by_a_line(self):
        far = self.folder / "far.csv"
        far.write_text(csv(193, 1, noise=9), encoding="utf-8")
        for model, words in ((self.script, "index out of range"), (self.compiled, "aborted while computing: index out of bounds")):
            daemon = self.daemon(listen=(self.unix_address(),))
            trainer = self.trainer(daemon.address, model, str(far))
            self.assert_fails(trainer, words)
            self.assertEqual(trainer.wait(), 1)
            self.assert_stops(daemon)

    def test_it_continues_after_kills(self):
        def start():
            return self.daemon(listen=(self.unix_address(),), durability={"type": "log", "path": str(self.folder / "saved")})

        daemon = start()
        trainer = self.trainer(daemon.address, self.compiled, None, "--steps", 3000, "--batch-size", 16)
        daemon.until_status("some pushes are in", lambda status: any(each["step"] >= 50 for each in status["trainers"]))
        daemon.kill()
        daemon = start()
        self.assert_ends(trainer)
        self.assertIn("back after", trainer.err)
        self.assertIn("done after 3000 steps", trainer.out)
        killed = self.trainer(daemon.address, self.compiled, None, "--steps", 100_000_000)
        daemon.until_status("it trains", lambda status: any(each["step"] >= 20 for each in status["trainers"]))
        killed.kill()
        self.assertEqual(list((self.folder / "scratch").iterdir()), [])
        self.assert_ends(self.trainer(daemon.address, self.compiled, None, "--steps", 20))

    @processes.long_test
    def test_virtual_trainers(self):
        told = []
        for run in range(2):
            daemon = self.daemon(listen=(self.unix_address(f"{run}"),), policy="locked")
            simulated = self.start_trainer("simulate", "--server", daemon.address, "--trainers", 3, "--steps", 30, "--model", self.compiled,
                                           "--data", self.noisy, "--json")
            self.assert_ends(simulated)
            told.append(json.loads(simulated.out))
        self.assertEqual((told[0]["model"], told[0]["steps"]), (self.compiled, 30))
        self.assertEqual(told[0]["parameters"], told[1]["parameters"])

    def test_errors_are_reported_before_the_daemon_is_contacted(self):
        whole = pathlib.Path(self.compiled).read_bytes()
        self.write("text.pt2", "no archive")
        (self.folder / "short.pt2").write_bytes(whole[:len(whole) // 2])
        with zipfile.ZipFile(self.folder / "plain.pt2", "w") as archive:
            archive.writestr("plain/.data/version", "6\n")
            archive.writestr("plain/archive_format", "pt2")

        def flip(content):
            changed = bytearray(content)
            changed[len(changed) // 2] ^= 1
            return bytes(changed)

        def with_any(content):
            return json.dumps({**json.loads(content), "columns": {"x": "f32[any]"}}).encode()

        for name, changes in (
                ("undeclared", {"psd.json": None}), ("later", manifest(format=2)), ("torch", manifest(torch="9.9.9")),
                ("machine", manifest(machine="m68k")), ("cpu", manifest(cpu=["fpu", "avx9000"])), ("shape", manifest(parameters={"a": [0]})),
                ("odd", manifest(odd=1)), ("values", {"psd_values": lambda content: content[:-4]}), ("code", {".so": flip}),
                ("columns", {"psd.json": with_any}), ("empty", {".so": None})):
            repack(self.compiled, self.folder / f"{name}.pt2", changes)
        for model, *words in (
                ("missing", "'missing.pt2': No such file or directory"),
                ("text", "'text.pt2' is not a package of a compiled step, which scripts/export_model writes: "),
                ("short", "'short.pt2' is not a package of a compiled step, which scripts/export_model writes: "),
                ("plain", "'plain.pt2' holds no psd_step.json, which says what it takes and gives; scripts/export_model writes one"),
                ("undeclared", "'undeclared.pt2' holds no psd.json"),
                ("later", "'later.pt2': psd_step.json: format 2 is from a later psd; expected 1"),
                ("torch", "'torch.pt2' was compiled for LibTorch 9.9.9, and this program has 2.", "; expected one exported with that release"),
                ("machine", "'machine.pt2' was compiled for m68k, and this machine is "),
                ("cpu", "'cpu.pt2' was compiled for a CPU with avx9000, which this one lacks"),
                ("shape", "'shape.pt2': psd_step.json: parameters.a: must be a shape"),
                ("odd", "'odd.pt2': psd_step.json: odd"),
                ("values", "'values.pt2' is damaged: 'extra/psd_values' is not what was exported"),
                ("code", "'code.pt2' is damaged: 'data/aotinductor/", ".so' is not what was exported"),
                ("columns", "'columns.pt2' is damaged: 'extra/psd.json' is not what was exported"),
                ("empty", "'empty.pt2' holds no compiled step")):
            with self.subTest(model):
                trainer = self.start_trainer("train", "--server", self.unix_address("none.sock"), "--model", f"{model}.pt2", "--data", self.data)
                self.assert_fails(trainer, "--model: ", *words)
                self.assertEqual(trainer.wait(), 2)
        other = self.write("other.csv", "x f32,y f32\n" + "0.5,0.5\n" * 30)
        self.assert_fails(self.trainer(self.unix_address("none.sock"), self.compiled, str(other)), "column 'user' is not there; expected i64: ")

    def test_a_pipe_is_refused(self):
        pipe = self.folder / "pipe.pt2"
        os.mkfifo(pipe)
        self.assert_fails(self.trainer(self.unix_address("none.sock"), pipe), "is not a regular file")

    def test_another_model_than_the_daemons(self):
        daemon = self.daemon(listen=(self.unix_address(),))
        self.assert_ends(self.train(daemon.address, steps=1))
        trainer = self.trainer(daemon.address, self.compiled)
        self.assert_fails(trainer, "model")
        self.assertNotEqual(trainer.wait(), 0)

    @processes.long_test
    def test_what_export_refuses(self):
        """Before anything is compiled."""
        cases = {"Branches": "forward depends on the size of the batch, from 5 to ",
                 "Odd": "the graph of the step gives another 'loss' than the class for a batch of 1: does forward depend on the size of the batch?",
                 "Sizes": "forward makes a constant of the size of the batch, as float(x.size(0)) does",
                 "Looks": "torch.export does not take forward in training: Could not guard on data-dependent expression",
                 "Counts": "forward changed 'shift', which is not a parameter",
                 "Longer": "columns.x: 'f32[any]' has an extent of any length",
                 "Tables": "tables.user: expected {\"dim\": 8, \"rows\": ",
                 "Alone": "the class has no parameter of its own that is trained",
                 "Indexed": "columns.user: forward uses it as an index (embedding), and a compiled step does not look whether one is in range; "
                            "expected 'i64 below N'",
                 "Smaller": "forward failed with synthetic data: Target 2 is out of bounds",
                 "More": "forward returned 'extra', which is not a metric of the class",
                 "Throws": "forward failed with synthetic data: not today",
                 "Base hidden=-1": "Trying to create tensor with negative dimension -1"}
        done = subprocess.run([PYTHON, "-c", REFUSALS, str(processes.REPO / "scripts"), *cases], capture_output=True, text=True, cwd=self.models.name,
                              stdin=subprocess.DEVNULL, timeout=400, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        told = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual((len(told), done.stderr), (len(cases), ""))
        for (name, words), line in zip(cases.items(), told):
            with self.subTest(name):
                self.assertNotIn("\n", line)
                name = name.split()[0]
                self.assertTrue(line.startswith(f"points.py:{name}: {words}"), line)
                self.assertFalse((pathlib.Path(self.models.name) / f"{name}.pt2").exists())


if __name__ == "__main__":
    processes.main()
