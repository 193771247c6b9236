"""Models with embedding tables in real processes: trained by several trainers, watched, and with lost rows."""

import json
import os
import pathlib
import unittest

import processes

MOVIELENS = pathlib.Path(os.environ.get("PSD_MOVIELENS") or os.devnull)  # not a folder
RATINGS = "ratings:samples=8000,users=60,items=40,noise=0.3"
FACTORS = "mf:dim=6,decay=0.002"
CLICKS = "clicks:samples=4000,scale=100000"
SGD = '{"type":"sgd","lr":0.4}'
# The mean is in every sample: with larger steps it oscillates when gradients are late.
GROUPS = '[{"match":"mean","optimizer":{"type":"sgd","lr":0.02}}]'


class RecommenderTest(processes.ProcessTest):
    def trainers(self, daemon, count, model, data, *more):
        return [self.start_trainer("train", "--server", daemon.address, "--rank", rank, "--world-size", count, "--model", model,
                                   "--data", data, "--threads", 1, *more) for rank in range(count)]

    def score(self, daemon, model, data, *more):
        scored = self.start_trainer("eval", "--server", daemon.address, "--model", model, "--data", data, "--json", *more)
        self.assert_ends(scored)
        return json.loads(scored.out)

    def rows(self, daemon):
        return {table["name"]: table["rows"] for table in daemon.status()["tables"]}


class Training(RecommenderTest):
    def test_two_trainers_learn_what_there_is_to_learn(self):
        for policy, batch, more in (("hogwild", "20", ()), ("hogwild", "20", ("--inflight", 2, "--prefetch")),
                                    ("locked", "auto:20", ("--data-plan", "dynamic", "--prefetch"))):
            with self.subTest(f"{policy} {more}"):
                daemon = self.daemon(policy=policy, optimizer=SGD, groups=GROUPS, listen=(self.unix_address(f"{len(self.processes)}.sock"),))
                metrics = self.folder / f"{len(self.processes)}.jsonl"
                trainers = self.trainers(daemon, 2, FACTORS, RATINGS, "--batch-size", batch, "--epochs", 8, "--metrics", metrics, *more)
                for trainer in trainers:
                    self.assert_ends(trainer)
                self.assertRegex(trainers[0].out, r"test loss \d\.\d{4}, rmse 0\.\d{4} on 888 synthetic ratings")
                score = self.score(daemon, FACTORS, RATINGS)
                # The noise is 0.3; without the factors 0.74.
                self.assertLess(score["rmse"], 0.38)
                self.assertGreater(score["rmse"], 0.27)
                self.assertLessEqual(self.rows(daemon)["user"], 60)
                lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
                self.assertGreater(max(line["rows"] for line in lines), 10)
                self.assertEqual(lines[-1]["known_rows"], lines[-1]["rows"])
                self.assert_stops(daemon)

    @unittest.skipUnless(MOVIELENS.is_dir(), f"PSD_MOVIELENS names no folder with MovieLens's ratings.csv: {MOVIELENS}")
    def test_movielens(self):
        daemon = self.daemon(optimizer='{"type":"sgd","lr":0.16}', groups=GROUPS, listen=(self.unix_address(),))
        data = f"movielens:{MOVIELENS}"
        for trainer in self.trainers(daemon, 2, "mf", data, "--epochs", 30):
            self.assertEqual(trainer.wait(600), 0)
        self.assertLess(self.score(daemon, "mf", data)["rmse"], 0.87)


class Watching(RecommenderTest):
    def test_observers_make_no_rows_and_pull_few(self):
        daemon = self.daemon(policy="locked", optimizer='{"type":"adagrad","lr":0.05}', listen=(self.unix_address(),), row_shards=3)
        watcher = self.start_trainer("eval", "--server", daemon.address, "--model", "dlrm:dim=4,hidden=8", "--data", CLICKS,
                                     "--every", 0.05, "--json")
        processes.until("it waits for a model", lambda: "waiting for a model" in watcher.err)
        trainer, = self.trainers(daemon, 1, "dlrm:dim=4,hidden=8", CLICKS, "--epochs", 3)
        self.assert_ends(trainer)
        before = self.rows(daemon)
        seen = len(watcher.out.splitlines())
        processes.until("there are scores after the last step", lambda: len(watcher.out.splitlines()) > seen + 1)
        self.assertEqual(self.rows(daemon), before)
        first, *_, last = [json.loads(line) for line in watcher.out.splitlines()]
        self.assertEqual(set(last), {"seconds", "model", "data", "samples", "loss", "auc", "calibration", "versions"})
        self.assertLess(last["loss"], first["loss"])
        self.assertGreater(last["auc"], 0.6)
        self.assertEqual(len(last["versions"]), len(daemon.status()["shards"]) + 3)
        again = self.score(daemon, "dlrm:dim=4,hidden=8", CLICKS)
        self.assertEqual((again["loss"], again["auc"]), (last["loss"], last["auc"]))
        self.assert_stops(daemon)
        self.assert_ends(watcher)


class LostRows(RecommenderTest):
    def restarted(self, *more):
        """A trainer whose daemon dies and restarts empty."""
        daemon = self.daemon(optimizer=SGD, groups=GROUPS, listen=(self.unix_address(),))
        trainer, = self.trainers(daemon, 1, FACTORS, RATINGS, "--steps", 10_000_000, *more)
        daemon.until_status("it trains", lambda status: any(each["step"] > 2 for each in status["trainers"]))
        daemon.kill()
        return trainer, self.daemon(optimizer=SGD, groups=GROUPS, listen=(self.unix_address(),))

    def test_a_trainer_whose_rows_are_lost_ends_with_one_line(self):
        trainer, _ = self.restarted()
        self.assert_fails(trainer, "came back without the rows of the embedding tables", "--accept-lost-rows")

    def test_it_continues_if_configured(self):
        trainer, daemon = self.restarted("--accept-lost-rows")
        daemon.until_status("rows are there again", lambda status: any(table["rows"] > 10 for table in status["tables"]))
        trainer.signal(2)
        self.assert_ends(trainer, 128 + 2)


class Refused(RecommenderTest):
    def test_data_and_models_that_do_not_fit(self):
        trainer = self.start_trainer("train", "--server", self.unix_address("none.sock"), "--model", "mf", "--data", CLICKS)
        self.assert_fails(trainer, "numbers f32[13], categories i64[26]", "the model mf takes user i64, item i64, rating f32")
        self.assertEqual(trainer.wait(), 2)

    def test_a_file_that_is_wrong(self):
        self.write("ratings.csv", "userId,movieId,rating,timestamp\n1,2,3.5,4\n1,2,much,4\n")
        trainer = self.start_trainer("train", "--server", self.unix_address("none.sock"), "--model", "mf", "--data",
                                     f"movielens:{self.folder}")
        self.assert_fails(trainer, "--data: ", "ratings.csv:3:5: 'much' is not a rating; expected a number")


if __name__ == "__main__":
    processes.main()
