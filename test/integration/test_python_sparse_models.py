"""logistic, fm and deepfm reach the optimum of convex problems, and what they learned can be exported."""

import gzip
import json
import random
import re
import signal
import struct
import unittest

import numpy as np
import processes
from sparse_problems import CriteoProblem, PairsProblem, SparseTest, logistic_optimum

import psd


def safetensors(path):
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    kinds = {"U64": np.uint64, "F32": np.float32}
    return {name: np.frombuffer(data[8 + size + each["data_offsets"][0]:8 + size + each["data_offsets"][1]],
                                kinds[each["dtype"]]).reshape(each["shape"])
            for name, each in header.items() if name != "__metadata__"}


class Optimum(SparseTest):
    def test_logistic_on_criteo(self):
        problem = CriteoProblem(4000)
        optimum = logistic_optimum(problem.matrix, problem.labels)
        file = self.write("clicks.tsv", problem.text)
        data = f"criteo:{file}:test={file}"
        daemon = self.configured("logistic", "--set", "optimizer.l1=0")  # the problem without a penalty
        metrics = self.folder / "metrics.jsonl"
        trainers = self.train(daemon, "logistic", data, "--epochs", 60, "--batch-size", 256, "--metrics", metrics, count=2)
        self.assertRegex(trainers[0].out, r"test loss 0\.\d{4}, auc 0\.\d{4}, calibration [01]\.\d{4}, nonzero_weights \d+ on 4000 examples from ")
        score = self.score(daemon, "logistic", data)
        self.assertEqual(set(score), {"model", "data", "samples", "loss", "auc", "calibration", "nonzero_weights", "versions"})
        self.assertLess(score["loss"], optimum * 1.005)
        self.assertGreater(score["loss"], optimum * 0.9999)
        self.assertAlmostEqual(score["calibration"], 1, delta=0.05)
        # A row for each distinct feature; numbers that are never positive have none.
        self.assertEqual(score["nonzero_weights"], problem.matrix.shape[1] - 1)
        line = json.loads(metrics.read_text(encoding="utf-8").splitlines()[-1])
        self.assertLess(line["nonzero_weights"], problem.matrix.shape[1])
        self.assertGreater(line["nonzero_weights"], 100)
        # Equal features of a batch are sent once: an id, a value, and little else.
        self.assertLess(line["push_bytes"], 16 * line["rows"] + 2000)
        self.assertGreater(line["pull_bytes"], 4 * line["rows"])
        self.assertRegex(trainers[0].out, r"samples/s  read [\d.]+ [KM]iB  staleness")

    def test_a_penalty_leaves_out_what_says_little(self):
        problem = CriteoProblem(4000)
        file = self.write("clicks.tsv", problem.text)
        data = f"criteo:{file}:test={file}"
        daemon = self.configured("logistic", "--set", "optimizer.l1=0.4")
        self.train(daemon, "logistic", data, "--epochs", 20, "--batch-size", 256)
        score = self.score(daemon, "logistic", data)
        self.assertLess(score["nonzero_weights"], 0.8 * problem.matrix.shape[1])
        self.assertGreater(score["nonzero_weights"], 0.2 * problem.matrix.shape[1])
        self.assertLess(score["loss"], 1.03 * logistic_optimum(problem.matrix, problem.labels))

    def test_fm(self):
        problem = PairsProblem(4000)
        file = self.write("pairs.txt", problem.text)
        data = f"libsvm:{file}:test={file}"
        # Weights of single features find nothing, the products all there is.
        self.assertGreater(problem.constant, problem.optimum * 1.1)
        # The example drops factors of rare features; here there are none.
        for model, config, most in (("logistic", "logistic", None), ("fm:dim=4", "fm", problem.optimum * 1.005)):
            with self.subTest(model):
                daemon = self.configured(config)
                self.train(daemon, model, data, "--epochs", 30, "--batch-size", 64)
                loss = self.score(daemon, model, data)["loss"]
                self.assertGreater(loss, problem.optimum * 0.9999 if most else problem.constant * 0.98)
                if most:
                    self.assertLess(loss, most)

    def test_deepfm(self):
        problem = PairsProblem(4000)
        file = self.write("pairs.txt", problem.text)
        data = f"libsvm:{file}:test={file}"
        daemon = self.configured("deepfm")
        model = "deepfm:dim=4,fields=2,hidden=16"
        self.train(daemon, model, data, "--epochs", 30, "--batch-size", 64, count=2)
        self.assertLess(self.score(daemon, model, data)["loss"], problem.optimum * 1.005)
        wrong = self.start_trainer("eval", "--server", daemon.address, "--model", "deepfm", "--data", data)
        self.assert_fails(wrong, "column 'ids' is i64[2]; expected i64[39]")


class Export(SparseTest):
    def test_the_formats_of_a_table(self):
        problem = CriteoProblem(300)
        file = self.write("clicks.tsv", problem.text)
        daemon = self.configured("fm")
        self.train(daemon, "fm:dim=3", f"criteo:{file}:test={file}", "--epochs", 2)
        self.assert_stops(daemon)
        saved = self.folder / "fm_saved"
        for table, dim in (("linear", 1), ("factors", 3)):
            paths = {name: self.folder / f"{table}.{name}" for name in ("safetensors", "csv", "libsvm")}
            for name, path in paths.items():
                done = self.start_psd("export", saved, "--table", table, "--format", name, "--to", path)
                self.assert_ends(done)
            tensors = safetensors(paths["safetensors"])
            rows = dict(zip(tensors["keys"].tolist(), tensors["values"], strict=True))
            self.assertEqual(tensors["values"].shape, (len(rows), dim))
            self.assertIn(f"{len(rows)} row(s), {np.count_nonzero(tensors['values'])} value(s) that are not zero", done.out)
            lines = paths["csv"].read_text(encoding="utf-8").splitlines()
            self.assertEqual(lines[0], ",".join(["id", *map(str, range(dim))]))
            self.assertEqual(len(lines), len(rows) + 1)
            for line in lines[1:]:
                key, *values = line.split(",")
                np.testing.assert_array_equal(np.array(values, np.float32), rows[int(key)])
            lines = paths["libsvm"].read_text(encoding="utf-8").splitlines()
            self.assertEqual(len(lines), sum(1 for values in rows.values() if values.any()))
            for line in lines:
                key, *entries = line.split()
                values = np.zeros(dim, np.float32)
                for entry in entries:
                    index, _, value = entry.partition(":")
                    self.assertNotEqual(np.float32(value), 0)
                    values[int(index)] = np.float32(value)
                np.testing.assert_array_equal(values, rows[int(key)])
            self.assertIn(psd.hash_category(0, ""), rows)
            self.assertIn(psd.hash_category(13, problem.category(0, 1)), rows)

    def test_wrong_formats(self):
        self.assert_fails(self.start_psd("export", "saved", "--table", "x", "--format", "json", "--to", "file"),
                          "--format: 'json' is not a format; expected safetensors, csv, libsvm")
        self.assert_fails(self.start_psd("export", "saved", "--format", "csv", "--to", "file"), "--format requires --table")


class Kills(SparseTest):
    """Daemon and trainers are killed in mid-epoch; each example is trained once."""

    def setUp(self):
        super().setUp()
        problem = CriteoProblem(4000)
        file = self.write("clicks.tsv", problem.text)
        self.data = f"criteo:{file}:test={file}"

    def trainer(self, daemon, rank, count):
        return self.start_trainer("train", "--server", daemon.address, "--rank", rank, "--world-size", count, "--model", "logistic", "--data", self.data,
                                  "--threads", 1, "--data-plan", "dynamic", "--batch-size", 32, "--epochs", 4, "--retry-timeout", processes.WAIT_S)

    def trained(self, run, policy, count=1, kills=()):
        """A daemon after the training. `kills`: after how many updates who is killed."""
        open_daemon = lambda: self.configured("logistic", run=run, policy=policy, durability__type="log")
        daemon = open_daemon()
        trainers = [self.trainer(daemon, rank, count) for rank in range(count)]
        for updates, killed in kills:
            daemon.until_status(f"{updates} updates", lambda status, least=updates: max((each["version"] for each in status["shards"]), default=0) >= least)
            self.assertTrue(trainers[0].runs(), "the epoch has not ended")
            if "trainer" in killed:
                trainers[0].kill()
            if "daemon" in killed:
                daemon.kill()
                daemon = open_daemon()
            if "trainer" in killed:
                trainers[0] = self.trainer(daemon, 0, count)
        for each in trainers:
            self.assert_ends(each)
        return daemon

    def bits(self, run, policy, kills=()):
        """The learned tensor, and the rows by id."""
        self.assert_stops(self.trained(run, policy, kills=kills))
        tensors, rows = (self.folder / f"{run}-{name}" for name in ("tensors", "rows"))
        self.psd("export", self.folder / f"{run}_saved", "--to", tensors)
        self.psd("export", self.folder / f"{run}_saved", "--table", "weights", "--to", rows)
        learned = safetensors(rows)
        return safetensors(tensors)["bias"].view(np.uint32), dict(zip(learned["keys"].tolist(), learned["values"][:, 0].view(np.uint32).tolist(), strict=True))

    def test_one_trainer_learns_the_same_bits(self):
        # A push of a trainer that dies is whole under sync; under hogwild shards may differ by it.
        for policy, killed in (("hogwild", ("daemon", "daemon", "daemon")), ("sync", ("daemon", "trainer", "daemon and trainer"))):
            with self.subTest(policy):
                steady = self.bits(f"{policy}-steady", policy)
                self.assertGreater(len(steady[1]), 100)
                self.assertEqual(self.bits(f"{policy}-killed", policy, zip((60, 170, 300), killed)), steady)

    def test_two_trainers_learn_as_much(self):
        scores = [self.score(self.trained(run, "hogwild", 2, kills), "logistic", self.data)["auc"]
                  for run, kills in (("steady", ()), ("killed", ((60, "daemon"), (170, "trainer"), (300, "daemon and trainer"))))]
        self.assertAlmostEqual(scores[1], scores[0], delta=0.001)


class Files(SparseTest):
    def test_malformed_lines(self):
        file = self.write("a.txt", "1 1:1\n0 2:1\n1 3:x\n" * 10)
        nowhere = self.unix_address("none.sock")
        trainer = self.start_trainer("train", "--server", nowhere, "--model", "logistic", "--data", f"libsvm:{file}:test={file}")
        self.assert_fails(trainer, f"--data: {file}:3: at character 3: '3:x'; the value is a finite number; --bad-lines N skips")
        daemon = self.configured("logistic")
        skipping, = self.train(daemon, "logistic", f"libsvm:{file}:test={file}", "--bad-lines", 10)
        self.assertIn(f"--bad-lines: skipped 10 malformed line(s), the first is {file}:3: at character 3", skipping.err)
        self.assertIn(f"20 examples from {file} (10 malformed line(s) skipped)", skipping.out)

    def test_every_example_goes_to_one_trainer(self):
        """The first gradient of a weight, whose logit is 0, adds 0.5 / batch; another one would add about as much again."""
        count, batch = 12_000, 10
        lines = [f"1 {number}:1\n" for number in range(count)]
        folder = self.folder / "parts"
        folder.mkdir()
        for part in range(4):
            with gzip.open(folder / f"part-{part}.gz", "wt") as file:
                file.writelines(lines[part * count // 4:(part + 1) * count // 4])
        for plan in ("static", "dynamic"):
            with self.subTest(plan):
                saved = self.folder / plan
                daemon = self.daemon(listen=(self.unix_address(f"{plan}.sock"),), policy="hogwild", optimizer='{"type":"sgd","lr":1.0}',
                                     groups=[{"match": "bias", "optimizer": {"type": "sgd", "lr": 1e-12}}],
                                     durability={"type": "checkpoint", "path": str(saved)}, membership={"lease_ms": 60_000},
                                     world_size=3 if plan == "static" else {"min": 1, "max": 3})
                start = lambda at=daemon.address, how=plan: self.start_trainer(
                    "train", "--server", at, "--model", "logistic", "--data", f"libsvm:{folder}:test={folder}", "--threads", 1, "--data-plan", how,
                    "--rank", "auto", "--batch-size", batch)
                trainers = [start()]
                if plan == "dynamic":  # the first one stops in mid-epoch; the others cannot end while it has samples
                    daemon.until_status("it trains", lambda status: status["counters"]["gradients"] > 0)
                    trainers[0].signal(signal.SIGSTOP)
                trainers += [start(), start()]
                if plan == "dynamic":
                    daemon.until_status("all train", lambda status: len(status["trainers"]) == 3)
                    trainers[0].signal(signal.SIGINT)
                    trainers[0].signal(signal.SIGCONT)
                self.assert_ends(trainers[0], 130 if plan == "dynamic" else 0)
                for trainer in trainers[1:]:
                    self.assert_ends(trainer)
                self.assert_stops(daemon)
                self.assert_ends(self.start_psd("export", saved, "--table", "weights", "--to", self.folder / "w"))
                tensors = safetensors(self.folder / "w")
                self.assertEqual(sorted(tensors["keys"].tolist()), list(range(count)))
                np.testing.assert_allclose(tensors["values"], 0.5 / batch, rtol=1e-5)


class Categories(unittest.TestCase):
    def test_ids_are_those_of_the_trainer(self):
        # sparse_files_test.cc has the same ones.
        for (field, text), expected in {(0, ""): 0xe220a8397b1dcdaf, (13, ""): 0x8bda8e3538ab2b9c, (13, "68fd1e64"): 0x74c7c944e1257405,
                                        (38, b"68fd1e64"): 0x6e0fec38b533fcaf, (14, "a"): 0x4992d2e8e79c69a2,
                                        (20, "80e26c9bx"): 0x217c56fc453aa590, (38, "twenty bytes of text"): 0x707e7a5a7950e542}.items():
            self.assertEqual(psd.hash_category(field, text), expected)
        self.assertEqual(psd.hash_category(7, "é"), psd.hash_category(7, "é".encode()))
        self.assertNotEqual(psd.hash_category(7, "a"), psd.hash_category(8, "a"))
        with self.assertRaisesRegex(psd.InvalidArgument, "field is -1; expected a whole number from 0 to 4294967295"):
            psd.hash_category(-1, "a")
        with self.assertRaisesRegex(TypeError, "field is 'x'"):
            psd.hash_category("x", "a")
        with self.assertRaises(TypeError):
            psd.hash_category(1, 2)

    def test_the_documented_code_computes_them(self):
        page = (processes.REPO / "docs/reference/trainer.md").read_text(encoding="utf-8")
        code, = re.findall(r"```python\n(def hash_category.*?)```", page, re.DOTALL)
        documented = {}
        exec(code, documented)
        draw = random.Random(1)
        for length in range(40):
            field, text = draw.randrange(1 << 32), draw.randbytes(length)
            self.assertEqual(documented["hash_category"](field, text), psd.hash_category(field, text))


if __name__ == "__main__":
    processes.main()
