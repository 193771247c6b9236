"""psd-executor with models that have embedding tables, as real processes: training, crashes, and reports of lost rows."""

import json
import re
import signal
import subprocess

import processes
from test_executor import EXECUTOR, ExecutorTest

FACTORS = "mf:dim=6,decay=0.002"
RATINGS = "ratings:samples=8000,users=60,items=40,noise=0.3"
CLICKS = "clicks:samples=4000,scale=100000"
SGD = '{"type":"sgd","lr":0.4}'
# The mean is in every sample: with larger steps it oscillates when gradients are late.
GROUPS = '[{"match":"mean","optimizer":{"type":"sgd","lr":0.02}}]'
# A module with tables.
OWN = """from typing import Dict

import torch
from torch import Tensor, nn


class Ratings(nn.Module):
    columns = {"user": "i64", "item": "i64", "rating": "f32"}
    inputs = ["user", "item"]
    tables = {"user": {"dim": 7, "scale": 0.05, "rows": {"user.rows": "user"}},
              "item": {"dim": 7, "scale": 0.05, "rows": {"item.rows": "item"}}}
    output_loss = {"kind": "squared_error", "output": "guess", "target": "rating"}
    metrics = {"rmse": "root"}

    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.full((1,), 3.5))

    @torch.jit.export
    def outputs(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
        user, item = batch["user.rows"], batch["item.rows"]
        return {"guess": self.mean + user[:, -1] + item[:, -1] + (user[:, :-1] * item[:, :-1]).sum(1)}

    def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
        squares = (self.outputs(batch)["guess"] - batch["rating"]).square()
        return {"loss": squares.mean(), "rmse": torch.stack([squares.sum(), torch.ones_like(squares).sum()])}
"""


class TablesTest(ExecutorTest):
    def factor_daemon(self, *arguments, **settings):
        return self.unix_daemon(*arguments, **{"optimizer": SGD, "groups": GROUPS, **settings})

    def score(self, daemon, model, data):
        scored = self.start_trainer("eval", "--server", daemon.address, "--model", model, "--data", data, "--json")
        self.assert_ends(scored)
        return json.loads(scored.out)


class Training(TablesTest):
    def test_a_batch_in_parts_is_refused_at_the_start(self):
        self.executor(self.factor_daemon(), module=FACTORS)
        self.assert_fails(self.remote(data=RATINGS, steps=1, more=["--micro-batches", 2]), "--micro-batches: ", "embedding tables")

    def test_two_trainers_learn_ratings(self):
        for policy in ("hogwild", "locked", "sync"):
            with self.subTest(policy):
                daemon = self.factor_daemon(policy=policy, row_shards=3)
                executor = self.executor(daemon, module=FACTORS)
                trainers = [self.remote(rank, 2, data=RATINGS, steps=1000 if policy == "sync" else 1600, more=["--batch-size", 20])
                            for rank in range(2)]
                for trainer in trainers:
                    self.assert_ends(trainer)
                self.assertRegex(trainers[0].out, r"test loss \d\.\d{4}, rmse 0\.\d{4} on 888 synthetic ratings")
                score = self.score(daemon, FACTORS, RATINGS)
                self.assertLess(score["rmse"], 0.40)  # the noise is 0.3; without the factors 0.74
                self.assertGreater(score["rmse"], 0.27)
                self.assertLessEqual({each["name"]: each["rows"] for each in daemon.status()["tables"]}["user"], 60)
                self.assertGreater(self.executor_status()["memory_bytes"], 0)
                executor.signal(signal.SIGTERM)
                self.assert_ends(executor)
                self.assert_stops(daemon)
                (self.folder / "executor.sock").unlink(missing_ok=True)

    def test_clicks_are_scored_by_auc(self):
        daemon = self.unix_daemon(policy="locked", optimizer='{"type":"adagrad","lr":0.05}')
        self.executor(daemon, module="dlrm:dim=4,hidden=8")
        trainer = self.remote(data=CLICKS, steps=375)
        self.assert_ends(trainer)
        told = re.search(r"test loss (\d\.\d{4}), auc (\d\.\d{4})", trainer.out)
        score = self.score(daemon, "dlrm:dim=4,hidden=8", CLICKS)
        self.assertGreater(score["auc"], 0.6)
        self.assertAlmostEqual(float(told[1]), score["loss"], delta=1e-3)
        self.assertAlmostEqual(float(told[2]), score["auc"], delta=1e-3)

    def test_margins_are_scored_by_the_side_they_are_on(self):
        data, model = "documents:samples=4000,words=300,length=10,noise=0", "svm:decay=0.001"
        daemon = self.unix_daemon(policy="locked", optimizer='{"type":"sgd","lr":0.5}')
        self.executor(daemon, module=model)
        trainer = self.remote(data=data, steps=600)
        self.assert_ends(trainer)
        told = re.search(r"test loss (\d\.\d{4}), accuracy (\d\d\.\d\d) %", trainer.out)
        score = self.score(daemon, model, data)
        self.assertGreater(score["accuracy"], 0.8)
        self.assertAlmostEqual(float(told[1]), score["loss"], delta=1e-3)
        self.assertAlmostEqual(float(told[2]), 100 * score["accuracy"], delta=0.01)

    def test_a_module_of_ones_own_with_tables(self):
        for name, source in (("ratings", OWN), ("few", OWN.replace('"user": "i64"', '"user": "i64 below 50"'))):
            self.write(f"{name}.py", source)
            subprocess.run([processes.REPO / "scripts" / "export_model", f"{name}.py:Ratings"], cwd=self.folder, check=True,
                           stdout=subprocess.DEVNULL, timeout=processes.WAIT_S)
        rows = [f"{user},{item},{3 + (user % 3) - (item % 2) + 0.5}" for user in range(60) for item in range(30)]
        data = self.write("ratings.csv", "\n".join(["user,item,rating", *rows]) + "\n")
        daemon = self.factor_daemon()
        executor = self.executor(daemon, module=self.folder / "ratings.pt")
        trainer = self.remote(data=data, steps=600)
        self.assert_ends(trainer)
        told = float(re.search(r"rmse (\d\.\d{4})", trainer.out)[1])
        self.assertLess(told, 0.3)  # 0.97 by the mean
        self.assertAlmostEqual(told, self.score(daemon, self.folder / "ratings.pt", data)["rmse"], delta=1e-3)
        executor.kill()
        self.executor(daemon, module=self.folder / "few.pt")
        self.assert_fails(self.remote(data=data), "column 'user' is i64 below 60; expected i64 below 50")

    def test_data_without_the_target_are_refused(self):
        daemon = self.factor_daemon()
        self.executor(daemon, module=FACTORS)
        data = self.write("ratings.csv", "user,item,label\n" + "1,2,0\n" * 20)
        self.assert_fails(self.remote(data=data), "column 'rating' is not there; expected f32")
        self.assertEqual(daemon.status()["trainers"], [])


class Death(TablesTest):
    def settings(self, policy):
        return {"policy": policy, "row_shards": 3, "durability__type": "log", "durability__path": str(self.folder / "saved")}

    def trained(self, daemon, steps):
        """The ranks that are still working once each joined one has made that many steps."""
        self.until_steps(daemon, steps)
        ranks = {each["rank"] for each in daemon.status()["trainers"] if each["step"] > 0}
        self.assertTrue(ranks)
        return ranks

    def assert_each_once(self, daemon, steps, missing):
        """Every step of two trainers is in each shard and row shard once, except for at most `missing` that count as
        late."""
        status = daemon.status()
        parts = len(status["shards"]) + 3
        self.assert_stops(daemon)
        counts = self.pushes_of(self.folder / "saved")
        self.assertEqual(len(counts), parts)
        for shard, pushes in counts.items():
            self.assertEqual(set(pushes.values()), {1}, f"a step was applied twice in shard {shard}")
            self.assertLessEqual(len(pushes), 2 * steps)
            self.assertGreaterEqual(len(pushes), 2 * steps - missing)

    def test_an_executor_that_is_killed_loses_nothing_and_no_row_is_stepped_twice(self):
        daemon = self.factor_daemon(**self.settings("locked"))
        executor = self.executor(daemon, module=FACTORS)
        trainers = [self.remote(rank, 2, data=RATINGS, steps=600) for rank in range(2)]
        struck = set()
        for goal in (20, 60):
            struck |= self.trained(daemon, goal)
            executor.kill()
            executor = self.executor(daemon, module=FACTORS)
        for trainer in trainers:
            self.assert_ends(trainer)
        for rank in struck:  # the other one may have joined after both kills
            self.assertIn("back after", trainers[rank].err)
        executor.signal(signal.SIGTERM)
        self.assert_ends(executor)
        # A step of which one part had arrived when the executor died may count as late.
        self.assert_each_once(daemon, 600, missing=4)

    def test_a_daemon_that_is_killed_comes_back_with_its_rows(self):
        for policy in ("locked", "sync"):
            with self.subTest(policy):
                settings = dict(self.settings(policy), durability__path=str(self.folder / policy))
                daemon = self.factor_daemon(**settings)
                executor = self.executor(daemon, module=FACTORS)
                trainers = [self.remote(rank, 2, data=RATINGS, steps=400) for rank in range(2)]
                struck = set()
                for goal in (20, 60):
                    struck |= self.trained(daemon, goal)
                    daemon.kill()
                    daemon = self.factor_daemon(**settings)
                for trainer in trainers:
                    self.assert_ends(trainer)
                for rank in struck:  # the other one may have joined after both kills
                    self.assertIn("back after", trainers[rank].err)
                self.assertTrue(executor.runs())
                rows = {each["name"]: each["rows"] for each in daemon.status()["tables"]}
                self.assertEqual(rows, {"user": 60, "item": 40})
                executor.kill()
                self.assert_stops(daemon)
                for pushes in self.pushes_of(self.folder / policy).values():
                    self.assertEqual(set(pushes.values()), {1})
                    self.assertEqual(len(pushes), 800)

    def test_rows_lost_with_their_daemon_are_reported(self):
        for flags, goes_on in (([], False), (["--accept-lost-rows"], True)):
            with self.subTest(goes_on=goes_on):
                daemon = self.factor_daemon()  # saves nothing
                executor = self.executor(daemon, module=FACTORS)
                trainer = self.remote(data=RATINGS, steps=10_000_000, more=flags)
                self.until_steps(daemon, 20)
                daemon.kill()
                daemon = self.factor_daemon()
                if goes_on:
                    daemon.until_status("rows are there again", lambda status: any(each["rows"] > 10 for each in status["tables"]))
                    trainer.signal(signal.SIGINT)
                    self.assert_ends(trainer, 128 + signal.SIGINT)
                else:
                    self.assert_fails(trainer, "came back without the rows of the embedding tables", "--accept-lost-rows")
                self.assertTrue(executor.runs())
                executor.kill()
                daemon.kill()

    def test_an_executor_that_comes_back_keeps_an_eye_on_the_rows_too(self):
        daemon = self.factor_daemon()
        executor = self.executor(daemon, module=FACTORS)
        trainer = self.remote(data=RATINGS, steps=10_000_000)
        self.until_steps(daemon, 20)
        executor.kill()
        daemon.kill()
        self.executor(self.factor_daemon(), module=FACTORS)
        self.assert_fails(trainer, "came back without the rows of the embedding tables")


    def test_a_full_table_ends_a_trainer_as_one_with_gradients_of_its_own(self):
        full = {"tables": '[{"match":"*","max_rows":40}]', "optimizer": '{"type":"sgd","lr":0.1}'}
        ratings = ["--data", "ratings:samples=4000,users=2000,items=1000", "--steps", 100, "--batch-size", 30]
        own = self.start_trainer("train", "--server", self.unix_daemon(**full).address, "--model", FACTORS, *ratings)
        self.assert_fails(own, "max_rows is ")
        (self.folder / "psd.sock").unlink(missing_ok=True)
        self.processes[0].kill()
        daemon = self.unix_daemon(**full)
        self.executor(daemon, module=FACTORS)
        remote = self.start_trainer("train", "--execute", self.unix_address("executor.sock"), *ratings, "--retry-timeout", 600)
        self.assert_fails(remote, "max_rows is ")
        self.assertNotIn("trying again", remote.err)
        words = re.compile(r"step \d+ \(epoch 1\): embedding table: cannot add .*max_rows is \d+; raise .*$", re.M)
        self.assertRegex(own.err, words)
        self.assertRegex(remote.err, words)


class Nonsense(TablesTest):
    def test_wrong_command_lines_get_one_line(self):
        done = subprocess.run([EXECUTOR, "check", "--module", "lstm_lm:candidates=8"], capture_output=True, text=True,
                              timeout=processes.WAIT_S, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("has no outputs, only a loss; expected one of deepfm, dlrm, fm, gpt, logistic, ", done.stderr)
        done = subprocess.run([EXECUTOR, "check", "--module", "mf", "--set", 'stages=["item"]'], capture_output=True, text=True,
                              timeout=processes.WAIT_S, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, "^psd-executor: stages: model 'mf' cannot be cut at its layers; expected one of mlp, mnist_cnn, resnet20")


if __name__ == "__main__":
    processes.main()
