"""A daemon that is killed in mid-training and started again: the trainers continue automatically."""

import collections
import json
import re
import shutil
import signal

import processes

TRAINERS = 2
STEPS = 600
KILLS = 3
PERIOD = 8  # of easgd: steps between exchanges, the default


class KilledDaemon(processes.ProcessTest):
    def start(self, durability, policy, codec="none"):
        # The same address every time: trainers reconnect to it.
        return self.daemon(listen=(self.unix_address(),), policy=policy, shards=2, durability=durability,
                           codecs={"push": {"default": codec}})

    def train_through(self, durability, policy="locked", pushes=STEPS, codec="none"):
        """Two trainers with that many pushes each, and a daemon that is killed repeatedly; returns its final status."""
        daemon = self.start(durability, policy, codec)
        trainers = [self.train(daemon.address, rank, TRAINERS, steps=STEPS) for rank in range(TRAINERS)]
        for kill in range(1, KILLS + 1):
            target = kill * pushes // (KILLS + 2)
            # The faster one may have made all of its pushes before the slower one has made as many.
            daemon.until_status(f"one has made {target} pushes",
                                lambda status: len(status["trainers"]) == TRAINERS
                                and any(trainer["step"] >= target for trainer in status["trainers"]))
            daemon.kill()
            daemon = self.start(durability, policy, codec)
        for trainer in trainers:
            self.assert_ends(trainer)
            self.assertEqual(trainer.err.count("back after"), KILLS, trainer.err)
            self.assertIn(f"done after {STEPS} steps", trainer.out)
        return daemon.until_status("both have left", lambda status: not status["trainers"])

    def test_with_a_log_every_push_is_in_the_model_once(self):
        status = self.train_through({"type": "log", "path": str(self.folder / "saved")})
        self.assertEqual([shard["version"] for shard in status["shards"]], [TRAINERS * STEPS] * 2)

    def test_with_a_log_every_compressed_push_is_in_the_model_once(self):
        status = self.train_through({"type": "log", "path": str(self.folder / "saved")}, codec="topk:fraction=0.1")
        self.assertEqual([shard["version"] for shard in status["shards"]], [TRAINERS * STEPS] * 2)

    def test_a_trainer_notices_that_others_steps_are_to_be_taken(self):
        daemon = self.start({"type": "none"}, "easgd")
        trainer = self.endless_trainer(daemon)
        daemon.kill()
        self.start({"type": "none"}, "locked")
        self.assertEqual(trainer.wait(), 2)
        self.assertIn("the daemon came back with policy 'locked', whose local steps differ from those that "
                      "this trainer joined with; restart this trainer", trainer.err)

    def test_with_a_log_no_exchange_of_easgd_is_lost(self):
        path = self.folder / "saved"
        status = self.train_through({"type": "log", "path": str(path)}, "easgd", STEPS // PERIOD)
        exchanges = TRAINERS * STEPS // PERIOD
        self.assertEqual([shard["version"] for shard in status["shards"]], [exchanges] * 2)
        replayed = self.start_psd("replay", path)
        self.assert_ends(replayed)
        self.assertIn(f"shards at update {exchanges}, {exchanges}", replayed.out)

    def test_with_a_log_every_assigned_sample_is_trained_once(self):
        epochs, samples = 12, 400
        for policy in ("locked", "sync"):
            with self.subTest(policy):
                # No checkpoint except the first, so that the log holds everything.
                durability = {"type": "log", "path": str(self.folder / "saved"), "every_seconds": 0}
                daemon = self.start(durability, policy)
                trainers = [self.start_trainer("train", "--server", daemon.address, "--rank", rank, "--world-size", TRAINERS,
                                               "--model", "mlp", "--data", f"synthetic:{samples}", "--threads", 1, "--device", "cpu",
                                               "--epochs", epochs, "--batch-size", 8, "--data-plan", "dynamic", "--inflight",
                                               0 if policy == "sync" else 2) for rank in range(TRAINERS)]
                for target in (epochs * samples // 4, epochs * samples // 2):
                    daemon.until_status(f"{target} samples are done", lambda status: status["samples"]
                                        and status["samples"]["done"] >= target)
                    daemon.kill()
                    daemon = self.start(durability, policy)
                for trainer in trainers:
                    self.assert_ends(trainer)
                done = daemon.until_status("both have left", lambda status: not status["trainers"])["samples"]
                self.assertEqual(done, {"epoch": samples, "epochs": epochs, "done": epochs * samples})
                trained = processes.trained_samples(self.folder / "saved")
                every = collections.Counter((epoch, place) for epoch in range(epochs) for place in range(samples))
                self.assertEqual([trained[0] - every, every - trained[0]], [{}, {}])
                self.assertEqual(trained[1], trained[0])
                replayed = self.start_psd("replay", self.folder / "saved")
                self.assert_ends(replayed)
                self.assert_stops(daemon)
                inspected = self.start_psd("inspect", max((self.folder / "saved").glob("checkpoint-*")))
                self.assert_ends(inspected)
                self.assertIn(f"samples    {epochs} epochs of {samples}: {epochs * samples} done, 0 assigned", inspected.out)
                shutil.rmtree(self.folder / "saved")

    def test_with_checkpoints_what_came_after_the_last_one_is_missing(self):
        every = 50
        status = self.train_through({"type": "checkpoint", "path": str(self.folder / "saved"), "every_updates": every,
                                     "every_seconds": 0})
        for shard in status["shards"]:
            self.assertLessEqual(shard["version"], TRAINERS * STEPS)
            self.assertGreater(shard["version"], TRAINERS * STEPS // 2, "it started from scratch")

    def test_without_either_a_trainer_initializes_the_model_again(self):
        daemon = self.daemon(listen=(self.unix_address(),))
        trainer = self.endless_trainer(daemon)
        daemon.kill()
        daemon = self.daemon(listen=(self.unix_address(),))
        daemon.until_status("it trains again", lambda status: status["trainers"] and status["shards"][0]["version"] > 2)
        self.assertIn("this trainer sent its parameters", trainer.err)
        self.assertIn("joined (process", daemon.err)
        self.assertIn(" and initializes the model with its own parameters: this daemon starts without any", daemon.err)
        had = re.search(r" warn +the model has the parameters that rank 0 \(process \d+ on \S+\) had at its step (\d+); updates "
                        r"that it had not pulled are missing, and the optimizer's state is reset", daemon.err)
        self.assertGreater(int(had[1]), 0)
        self.assertNotIn("initial values", daemon.err)


class EndOfARun(processes.ProcessTest):
    """exit_when_done, with a daemon that is down for some time."""

    def start(self, **durability):
        return self.daemon(listen=(self.unix_address(),), policy="locked", exit_when_done=True,
                           durability={"path": str(self.folder / "saved"), **durability})

    def with_one_done(self, **durability):
        """A daemon of two trainers, one of which has finished its work; and the other one."""
        daemon = self.start(**durability)
        done = self.train(daemon.address, 0, 2, steps=5)
        other = self.endless_trainer(daemon, 1, 2)
        self.assert_ends(done)
        return daemon, other

    def assert_run_is_over(self, daemon, **durability):
        self.assert_ends(daemon)
        self.assertIn("stopping: all 2 trainers are done", daemon.err)
        self.assertIn("1 of 2 ranks have departed already", daemon.err)
        self.assertFalse((self.folder / "saved" / "trainers.json").exists())
        following = self.start(**durability)
        self.assertNotIn("have departed already", following.err)
        self.assertEqual(following.status()["state"], "serving")

    def test_who_was_done_when_the_daemon_was_killed_is_not_waited_for(self):
        # The second of them dies before it has taken a checkpoint.
        for durability in ({"type": "log"}, {"type": "checkpoint", "every_seconds": 0, "every_updates": 1_000_000_000}):
            with self.subTest(**durability):
                daemon, other = self.with_one_done(**durability)
                daemon.kill()
                if durability["type"] == "log":
                    shown = self.start_psd("inspect", self.folder / "saved")
                    self.assert_ends(shown)
                    self.assertIn("trainers.json: 1 of 2 ranks have come and gone (0)", shown.out)
                daemon = self.start(**durability)
                daemon.until_status("the other is back", lambda status: [each["rank"] for each in status["trainers"]] == [1])
                other.signal(signal.SIGINT)
                self.assertGreater(other.wait(), 0)
                self.assert_run_is_over(daemon, **durability)
                self.tearDown()
                shutil.rmtree(self.folder / "saved")

    def test_what_could_not_be_saved_at_the_end_is_saved_by_the_next_daemon(self):
        model = self.folder / "away" / "model.safetensors"
        model.parent.mkdir()
        settings = ["--listen", self.unix_address(), "--set", "exit_when_done=true", "--set", f"save={model}", "--set", "device=cpu",
                    "--set", "durability=" + json.dumps({"type": "checkpoint", "path": str(self.folder / "saved")})]
        daemon = self.start_psd(*settings)
        trainers = [self.train(self.unix_address(), rank, 2, steps=2) for rank in range(2)]
        processes.until("it serves", lambda: "ready: listening on" in daemon.err)
        model.parent.rmdir()
        for trainer in trainers:
            self.assert_ends(trainer)
        self.assert_fails(daemon, "could not save the model: ", f"'{model}': ")
        self.assertEqual(daemon.err.count("could not save"), 1)
        self.assertNotIn(".tmp.", daemon.err)
        model.parent.mkdir()
        daemon = self.start_psd(*settings)
        self.assert_ends(daemon)
        self.assertIn("2 of 2 ranks have departed already", daemon.err)
        self.assertTrue(model.exists())

    def test_one_that_was_sent_away_is_not_done(self):
        daemon, other = self.with_one_done(type="log")
        daemon.signal(signal.SIGINT)
        self.assert_ends(daemon)
        self.assert_fails(other, "shutting down")
        daemon = self.start(type="log")
        self.assert_ends(self.train(daemon.address, 1, 2, steps=5))
        self.assert_run_is_over(daemon, type="log")

    def test_one_that_comes_again_is_waited_for_again(self):
        daemon, other = self.with_one_done(type="log")
        again = self.endless_trainer(daemon, 0, 2)
        daemon.kill()
        daemon = self.start(type="log")
        daemon.until_status("both are back", lambda status: len(status["trainers"]) == 2)
        self.assertNotIn("1 of 2 ranks", daemon.err)
        for trainer in (other, again):
            self.assertTrue(daemon.runs())
            trainer.signal(signal.SIGINT)
            self.assertGreater(trainer.wait(), 0)
        self.assert_ends(daemon)


class DamagedLog(processes.ProcessTest):
    """Files of a killed daemon, modified since."""

    def setUp(self):
        self.saved = self.folder / "saved"
        daemon = self.start(self.saved)
        # So small a segment is full after one write.
        self.assert_ends(self.train(daemon.address, steps=6))
        daemon.kill()
        self.segments = sorted(path.name for path in self.saved.glob("log-*"))
        self.assertGreater(len(self.segments), 4)

    def settings(self, path, **durability):
        return {"policy": "locked", "shards": 2,
                "durability": {"type": "log", "path": str(path), "segment_bytes": 65536, **durability}}

    def start(self, path, **durability):
        return self.daemon(**self.settings(path, **durability))

    def assert_start_fails(self, path):
        settings = self.settings(path)
        return self.start_psd("--listen", "tcp://127.0.0.1:0", "--set", "policy.type=locked", "--set", "shards=2",
                              "--set", "durability=" + json.dumps(settings["durability"]))

    def assert_refused(self, folder, *words):
        """The daemon, inspect and replay all name the damage, and change nothing."""
        def content():
            return sorted((path.name, path.stat().st_size) for path in folder.rglob("*") if path.name != "lock")

        before = content()
        for process in (self.start_psd("inspect", folder), self.start_psd("replay", folder), self.assert_start_fails(folder)):
            self.assert_fails(process, *words)
            self.assertEqual(process.wait(), 1, process.name)
        self.assertEqual(content(), before)

    def copied(self, name):
        folder = self.folder / name
        shutil.copytree(self.saved, folder)
        return folder

    def test_damage_within_is_named(self):
        middle = self.segments[len(self.segments) // 2]
        flipped = self.copied("flipped")
        content = bytearray((flipped / middle).read_bytes())
        content[200] ^= 1
        (flipped / middle).write_bytes(content)
        self.assert_refused(flipped, middle, "is damaged", "at byte 64")
        for missing in (middle, self.segments[0]):
            with self.subTest(missing=missing):
                folder = self.copied("without-" + missing)
                (folder / missing).unlink()
                self.assert_refused(folder, "is missing", "follows it")

    def test_the_segment_that_the_newest_checkpoint_names_is_missing_or_empty(self):
        newest = max(self.saved.glob("checkpoint-*"))
        named = json.loads((newest / "manifest.json").read_text())["log_segment"]
        first = f"log-{named:010}.psdlog"
        for words in (("is missing",), ("is damaged", "its header, bytes 0 to 63, is not intact")):
            with self.subTest(words=words):
                folder = self.copied("named-" + words[0].replace(" ", "-"))
                for segment in self.segments:
                    if segment >= first:
                        (folder / segment).unlink()
                if words != ("is missing",):
                    (folder / first).touch()
                self.assert_refused(folder, first, *words, "durability.resume=PATH")
                self.start(folder, resume=str(folder / newest.name))

    def test_what_a_crash_cuts_off_at_the_end_is_no_damage(self):
        # The newest segment has no record yet.
        last = self.saved / self.segments[-2]
        (self.saved / self.segments[-1]).unlink()
        with open(last, "r+b") as file:
            file.truncate(last.stat().st_size - 100)
        inspected = self.start_psd("inspect", self.saved)
        self.assert_ends(inspected)
        self.assertIn("bytes are not a complete record", inspected.out)
        self.assert_ends(self.start_psd("replay", self.saved))
        self.assertIn("dropped an unfinished one", self.start(self.saved).err)

    def test_a_log_without_its_checkpoints_is_not_silently_replaced(self):
        for checkpoint in self.saved.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
        before = sorted(self.saved.iterdir())
        refused = self.assert_start_fails(self.saved)
        self.assert_fails(refused, "saved/log-", "there is no checkpoint in", "durability.resume=none")
        self.assertEqual(refused.wait(), 1)
        self.assertEqual(sorted(self.saved.iterdir()), before)
        daemon = self.start(self.saved, resume="none")
        self.assertIn(f"0 checkpoint(s) and {len(self.segments)} log segment(s)", daemon.err)
        self.assertIsNone(daemon.status()["model"])


if __name__ == "__main__":
    processes.main()
