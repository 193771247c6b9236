"""A user's own models and data: exported from Python, trained by several psd-trainers, scored, and refused if wrong."""

import json
import os
import pathlib
import random
import re
import struct
import subprocess
import unittest

import processes

PYTHON = os.environ.get("PSD_PYTHON")
EXPORT = processes.REPO / "scripts" / "export_model"
CONVERT = processes.REPO / "scripts" / "convert_data"
CIRCLE = re.search(r"```python\n(.*?)```", (processes.REPO / "docs" / "guides" / "own_models.md").read_text(encoding="utf-8"), re.S).group(1)

# Writes incorrect models, and one with tables, into the current folder.
OTHERS = """
import json
from typing import Dict
import torch
from torch import Tensor, nn

XY = {"x": "f32", "y": "f32", "inside": "i64 below 2"}

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 1)
        self.norm = nn.Identity()
        self.register_buffer("seen", torch.zeros(1))

    def guess(self, batch: Dict[str, Tensor]) -> Tensor:
        return self.norm(self.line(torch.stack([batch["x"], batch["y"]], 1)))

def save(name, module, columns=XY, **more):
    torch.jit.save(torch.jit.script(module), name + ".pt", _extra_files={"psd.json": json.dumps({"columns": columns, **more})})

class Throws(Base):
    def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
        out = self.guess(batch)
        if out.size(0) > 0:
            raise ValueError("not today")
        return {"loss": out.mean()}

class Lost(Base):
    def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
        return {"lost": self.guess(batch).mean()}

class Long(Base):
    def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
        return {"loss": self.guess(batch)}

class Nan(Base):
    def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
        return {"loss": self.guess(batch).mean() * float("nan")}

class Counts(Base):
    def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
        if not self.training:
            self.seen += 1
        return {"loss": self.guess(batch).square().mean() + self.seen.sum()}

class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x

class Ratings(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.full((1,), 3.5))

    def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
        user, item = batch["user.rows"], batch["item.rows"]
        guess = self.mean + user[:, -1] + item[:, -1] + (user[:, :-1] * item[:, :-1]).sum(1)
        squares = (guess - batch["rating"]).square()
        return {"loss": squares.mean(), "rmse": torch.stack([squares.sum(), torch.ones_like(squares).sum()])}

for kind in (Throws, Lost, Long, Nan, Counts):
    save(kind.__name__.lower(), kind())
norm = Counts()
norm.norm = nn.BatchNorm1d(1)
save("batchnorm", norm)
save("plain", Plain())
save("misspelt", Counts(), columns={"x": "float"})
torch.jit.save(torch.jit.script(Counts()), "undeclared.pt")
save("wide", Counts(), columns={**XY, "x": "f32[2]"})
save("ratings", Ratings(), columns={"user": "i64", "item": "i64", "rating": "f32"}, metrics={"rmse": "root"},
     tables={name: {"dim": 7, "scale": 0.05, "rows": {name + ".rows": name}} for name in ("user", "item")})
"""


def points(count, seed):
    numbers = random.Random(seed)
    pairs = [(round(numbers.uniform(-1, 1), 4), round(numbers.uniform(-1, 1), 4)) for _ in range(count)]
    return [(x, y, int(x * x + y * y < 0.6)) for x, y in pairs]


def csv(rows, header="x,y,inside"):
    return "\n".join([header, *(",".join(str(value) for value in row) for row in rows)]) + "\n"


def write_safetensors(path, columns):
    header, data = {}, b""
    for name, (dtype, kind, values) in columns.items():
        packed = struct.pack(f"<{len(values)}{kind}", *values)
        header[name] = {"dtype": dtype, "shape": [len(values)], "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def run(*arguments, folder):
    return subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, cwd=folder, stdin=subprocess.DEVNULL,
                          timeout=processes.WAIT_S, check=False)


@unittest.skipUnless(PYTHON, "no python with torch is named")
class OwnModels(processes.ProcessTest):
    def export(self, *arguments):
        return run(EXPORT, *arguments, folder=self.folder)

    made = {}  # by name, created once for all tests

    def others(self):
        """Copies the models of OTHERS into the test's folder."""
        if not self.made:
            done = run(PYTHON, "-W", "ignore", self.write("others.py", OTHERS), folder=self.folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.made.update({path.name: path.read_bytes() for path in self.folder.glob("*.pt")})
        for name, content in self.made.items():
            (self.folder / name).write_bytes(content)

    def trainer(self, address, model, data, *more, rank=0, world_size=1):
        return self.start_trainer("train", "--server", address, "--rank", rank, "--world-size", world_size, "--model", model, "--data", data,
                                  "--threads", 1, *more)

    def score(self, daemon, model, data):
        scored = self.start_trainer("eval", "--server", daemon.address, "--model", model, "--data", data, "--threads", 1, "--json")
        self.assert_ends(scored)
        return json.loads(scored.out)

    def test_two_trainers_train_a_users_model_on_a_users_data(self):
        self.write("circle.py", CIRCLE)
        done = self.export("circle.py:Circle", "hidden=32")
        self.assertEqual((done.returncode, done.stdout), (0, "circle.pt: 162 parameters in 4 tensors\n"), done.stderr)
        self.write("points.csv", csv(points(2000, 1)))
        test = points(500, 2)
        write_safetensors(self.folder / "test.safetensors", {"x": ("F32", "f", [x for x, _, _ in test]), "y": ("F32", "f", [y for _, y, _ in test]),
                                                             "inside": ("I64", "q", [inside for _, _, inside in test])})
        daemon = self.daemon(optimizer='{"type":"adam","lr":0.01}', listen=(self.unix_address(),))
        trainers = [self.trainer(daemon.address, "circle.pt", "points.csv", "--epochs", 30, rank=rank, world_size=2) for rank in range(2)]
        for trainer in trainers:
            self.assert_ends(trainer)
        self.assertRegex(trainers[0].out, r"test loss 0\.\d{4}, accuracy \d{2,3}\.\d\d %, auc [01]\.\d{4} on 209 rows from points.csv")
        # On unseen points, from another kind of file.
        score = self.score(daemon, "circle.pt", "points.csv:test=test.safetensors")
        self.assertEqual((score["model"], score["samples"]), ("circle", 500))
        self.assertGreater(score["accuracy"], 0.94)
        self.assertGreater(score["auc"], 0.98)
        self.assertLess(score["loss"], 0.2)
        self.assertEqual(daemon.status()["model"]["name"], "circle")
        self.assert_stops(daemon)

    def test_tables(self):
        self.others()
        data = "ratings:samples=8000,users=60,items=40,noise=0.3"
        daemon = self.daemon(optimizer='{"type":"sgd","lr":0.4}', groups='[{"match":"mean","optimizer":{"type":"sgd","lr":0.02}}]',
                             listen=(self.unix_address(),))
        trainers = [self.trainer(daemon.address, "ratings.pt", data, "--epochs", 8, "--batch-size", 20, "--prefetch", rank=rank, world_size=2)
                    for rank in range(2)]
        for trainer in trainers:
            self.assert_ends(trainer)
        # The noise is 0.3; without the factors 0.74.
        self.assertLess(self.score(daemon, "ratings.pt", data)["rmse"], 0.4)
        self.assertEqual({table["name"]: table["rows"] for table in daemon.status()["tables"]}, {"user": 60, "item": 40})

        # Models that fail in a step, and one that fails in scoring.
        self.write("points.csv", csv(points(100, 1)))
        for model, words in (("throws", 'forward failed: builtins.ValueError: not today ("'), ("lost", "forward returned no 'loss'; it returned 'lost'"),
                             ("long", "forward returned 'loss' as f32[32,1]; expected a scalar"),
                             ("nan", "forward returned 'loss' as NaN; is the data finite, or was the learning rate too high?")):
            with self.subTest(model):
                served = self.daemon(listen=(self.unix_address(model),))
                trainer = self.trainer(served.address, f"{model}.pt", "points.csv")
                self.assertIn(f"step 1 (epoch 1): '{model}.pt': {words}", self.assert_fails(trainer))
                self.assertEqual(served.status()["trainers_lost"], 0)  # it said goodbye
                self.assertEqual(served.counter("gradients"), 0)
        served = self.daemon(listen=(self.unix_address("counts"),))
        self.assert_fails(self.trainer(served.address, "counts.pt", "points.csv"), "'counts.pt': forward changed 'seen', which is no parameter")

    def test_errors_are_reported_before_the_daemon_is_contacted(self):
        self.others()
        self.write("none.pt", "no archive")
        data = self.write("points.csv", csv(points(100, 1))).name
        self.write("three.csv", csv([(0, 0.5, 2)] * 30))
        self.write("bad.csv", csv([(0.5, "x", 1)] * 30))
        for model, files, *words in (
                ("missing.pt", data, "--model: 'missing.pt': No such file or directory"),
                ("none.pt", data, "--model: 'none.pt' is not a TorchScript file"),
                ("undeclared.pt", data, "--model: 'undeclared.pt' holds no psd.json, which says what columns it takes"),
                ("misspelt.pt", data, "--model: 'misspelt.pt': psd.json: columns.x: 'float' is not a column type"),
                ("plain.pt", data, "--model: 'plain.pt' has forward(Tensor) -> Tensor; expected forward(Dict[str, Tensor])"),
                ("batchnorm.pt", data, "--model: 'batchnorm.pt' has 'norm', which keeps running statistics as BatchNorm does"),
                ("wide.pt", data, "column 'x' is f32; expected f32[2]: the data (", "rows from points.csv) has inside i64 below 2, x f32, y f32"),
                ("counts.pt", "three.csv", "column 'x' is i64 below 1; expected f32: "),
                ("counts.pt", "synthetic:64", "column 'x' is not there; expected f32: the data (64 synthetic images) has image"),
                ("counts.pt", "bad.csv", "column 'y' cannot be read: bad.csv:2:5: 'x' is not a number"),
                ("counts.pt", "no.npy", "--data: no.npy: No such file or directory")):
            with self.subTest(model=model, data=files):
                trainer = self.trainer(self.unix_address("none.sock"), model, files)
                self.assert_fails(trainer, *words)

    def test_what_export_refuses(self):
        self.write("circle.py", CIRCLE + "\n\nclass Bare(nn.Module):\n    pass\n")
        self.write("wrong.py", CIRCLE.replace("right = answers", "right = answer"))
        self.write("norm.py", CIRCLE.replace("self.second = ", "self.norm = nn.BatchNorm1d(hidden)\n        self.second = "))
        for arguments, words in ((["circle.py"], "'circle.py' names no class; expected FILE.py:CLASS"),
                                 (["wrong.py:Circle"], "wrong.py:Circle: torch.jit.script rejects it: undefined value answer:"),
                                 (["circle.py:Circle", "hidden"], "'hidden' is not an argument; expected KEY=VALUE"),
                                 (["circle.py:Circle", "-o", "circle.bin"], "'circle.bin' does not end with .pt"),
                                 (["norm.py:Circle"], "Circle has 'norm', which keeps running statistics as BatchNorm does"),
                                 (["circle.py:Bare"], "Bare has no columns; expected columns = {")):
            with self.subTest(arguments):
                done = self.export(*arguments)
                self.assertNotEqual(done.returncode, 0)
                self.assertEqual((done.stdout, len(done.stderr.splitlines())), ("", 1), done.stderr)
                self.assertIn("export_model: ", done.stderr)
                self.assertIn(words, done.stderr)


@unittest.skipUnless(PYTHON, "no python with numpy is named")
class Parquet(processes.ProcessTest):
    WRITE = """
import pyarrow
from pyarrow import parquet
parquet.write_table(pyarrow.table({"x": [0.5, 1.5, 2.5], "n": pyarrow.array([1, -2, 3], "int32"), "yes": [True, False, True],
                                   "pair": [[1, 2], [3, 4], [5, 6]], "city": ["a", "b", "c"], "gap": [1, None, 3]}), "in.parquet")
"""

    def convert(self, *arguments):
        return run(CONVERT, *arguments, folder=self.folder)

    def test_columns_become_tensors(self):
        if run(PYTHON, "-c", "import numpy, pyarrow", folder=self.folder).returncode != 0:
            self.skipTest("python has no pyarrow")
        done = run(PYTHON, "-c", self.WRITE, folder=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.convert("in.parquet", "out.safetensors", "--columns", "x,n,yes,pair")
        self.assertEqual((done.returncode, done.stdout), (0, "out.safetensors: 3 rows of x, n, yes, pair\n"), done.stderr)
        data = pathlib.Path(self.folder / "out.safetensors").read_bytes()
        (size,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + size])
        kinds = {"F32": "f", "I64": "q", "U8": "B"}
        found = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            body = data[8 + size + begin:8 + size + end]
            kind = kinds[entry["dtype"]]
            found[name] = entry["dtype"], entry["shape"], list(struct.unpack(f"<{len(body) // struct.calcsize(kind)}{kind}", body))
        self.assertEqual(found, {"x": ("F32", [3], [0.5, 1.5, 2.5]), "n": ("I64", [3], [1, -2, 3]), "yes": ("U8", [3], [1, 0, 1]),
                                 "pair": ("I64", [3, 2], [1, 2, 3, 4, 5, 6])})
        for columns, words in (("x,city", "column 'city' is of string; expected numbers"), ("gap", "column 'gap' has 1 empty values"),
                               ("z", "no column 'z'; there are x, n, yes, pair, city, gap")):
            done = self.convert("in.parquet", "other.safetensors", "--columns", columns)
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(words, done.stderr)
        self.assertFalse((self.folder / "other.safetensors").exists())


if __name__ == "__main__":
    processes.main()
