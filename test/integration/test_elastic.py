"""Trainers that join and leave during training, with ranks assigned by the daemon."""

import json
import signal

import processes


class Elastic(processes.ProcessTest):
    def auto(self, daemon, more=("--steps", 10_000_000)):
        return self.start_trainer("train", "--server", daemon.address, "--rank", "auto", "--model", "mlp", "--data", "synthetic:128",
                                  "--threads", 1, "--device", "cpu", *more)

    def until_ranks(self, daemon, *ranks):
        return daemon.until_status(f"ranks {ranks} train", lambda status: sorted(
            trainer["rank"] for trainer in status["trainers"] if trainer["step"] > 0) == list(ranks))

    def test_they_take_the_lowest_free_rank(self):
        daemon = self.daemon(world_size={"min": 1, "max": 3})
        first = self.auto(daemon)
        self.until_ranks(daemon, 0)
        second = self.auto(daemon)
        self.until_ranks(daemon, 0, 1)
        third = self.auto(daemon)
        status = self.until_ranks(daemon, 0, 1, 2)
        self.assertEqual((status["world_size_min"], status["world_size"]), (1, 3))
        self.assert_fails(self.auto(daemon), "all 3 ranks are taken")
        self.assertIn("refused a trainer of any rank (process ", daemon.err)
        second.kill()
        fourth = self.auto(daemon, more=("--steps", 5))
        self.assert_ends(fourth)
        self.assertIn("rank 1 of 3 joined", fourth.err)
        self.assertIn("rank 1  done after 5 steps", fourth.out)
        self.assertTrue(first.runs() and third.runs())

    def test_after_a_restart_the_rank_of_an_expected_trainer_is_reserved(self):
        def start(grace):
            return self.daemon(listen=(self.unix_address(),), policy="locked", membership__grace_ms=grace,
                               world_size={"min": 1, "max": 2},
                               durability={"type": "log", "path": str(self.folder / "saved")})

        daemon = start(grace=60_000)
        first = self.auto(daemon)
        self.until_ranks(daemon, 0)
        first.signal(signal.SIGSTOP)
        daemon.kill()
        daemon = start(grace=60_000)
        second = self.auto(daemon)
        self.until_ranks(daemon, 1)
        first.signal(signal.SIGCONT)
        self.until_ranks(daemon, 0, 1)
        # While all ranks are reserved, a new trainer waits until the reservations expire.
        first.signal(signal.SIGSTOP)
        second.kill()
        daemon.kill()
        daemon = start(grace=500)
        third = self.auto(daemon, more=("--steps", 5))
        self.assert_ends(third)
        self.assertIn("of 2 joined", third.err)

    def test_the_daemon_ends_when_enough_have_come_and_all_have_gone(self):
        daemon = self.daemon(world_size={"min": 2, "max": 5}, exit_when_done=True)
        first = self.auto(daemon)
        self.until_ranks(daemon, 0)
        self.assert_ends(self.auto(daemon, more=("--steps", 3)))
        self.assertTrue(daemon.runs())
        first.kill()
        self.assert_ends(daemon)
        self.assertIn("stopping: all trainers are gone; lost on the way: 1", daemon.err)

    def test_without_a_world_size_anywhere_a_trainer_is_alone(self):
        daemon = self.daemon()
        alone = self.auto(daemon)
        self.until_ranks(daemon, 0)
        self.assert_fails(self.auto(daemon), "the only rank is taken by a trainer whose world size is 1")
        alone.signal(signal.SIGTERM)
        self.assert_ends(alone, 128 + signal.SIGTERM)
        self.assert_ends(self.auto(daemon, more=("--world-size", 2, "--steps", 2)))


class AssignedData(processes.ProcessTest):
    def test_a_dead_trainers_samples_go_to_others(self):
        daemon = self.daemon(world_size={"min": 1, "max": 3}, policy="locked", membership__grace_ms=0)
        plan = ("--rank", "auto", "--data-plan", "dynamic", "--epochs", 40, "--batch-size", 4, "--model", "mlp",
                "--data", "synthetic:400", "--threads", 1, "--device", "cpu")
        trainers = [self.start_trainer("train", "--server", daemon.address, *plan) for _ in range(3)]
        total = 40 * 400

        def done_at_least(count):
            return lambda status: status["samples"] and status["samples"]["done"] >= count

        daemon.until_status("a tenth is done", done_at_least(total // 10))
        trainers[2].kill()
        most = daemon.until_status("half is done", done_at_least(total // 2))
        self.assertEqual(most["samples"]["epoch"], 400)
        for trainer in trainers[:2]:
            self.assert_ends(trainer)
        self.assertIn("all epochs are done: 16000 samples", daemon.err)

    def sized(self, daemon, epochs, rank=0, world_size=1, more=()):
        return self.start_trainer("train", "--server", daemon.address, "--rank", rank, "--world-size", world_size, "--model", "mlp",
                                  "--data", "synthetic:400", "--threads", 1, "--device", "cpu", "--epochs", epochs, "--data-plan",
                                  "dynamic", "--batch-size", "auto:8", *more)

    def test_with_sizes_that_the_daemon_chooses_every_sample_is_trained_once(self):
        epochs, samples = 30, 400
        for policy in ("locked", "sync"):
            daemon = self.daemon(world_size=2, policy=policy, exit_when_done=True)
            trainers = [self.sized(daemon, epochs, rank, 2, ("--metrics", f"{policy}-{rank}.jsonl")) for rank in range(2)]
            for process in (*trainers, daemon):
                self.assert_ends(process)
            self.assertEqual(daemon.err.count(f"all epochs are done: {epochs * samples} samples"), 1)
            self.assertIn("batch size auto, nominally 8", trainers[0].err)
            steps = [json.loads(line) for rank in range(2)
                     for line in (self.folder / f"{policy}-{rank}.jsonl").read_text().splitlines()]
            self.assertTrue(all(1 <= step["batch"] <= 64 for step in steps))
            if policy == "locked":  # under sync a trainer that joins a round too late trains those samples again
                self.assertEqual(sum(step["batch"] for step in steps), epochs * samples)

    def test_a_trainer_that_joins_when_all_is_done_has_nothing_to_do(self):
        daemon = self.daemon(world_size=2, exit_when_done=True)
        for rank, said in ((0, "rank 0  done after 50 steps, 400 samples"),
                           (1, "rank 1  nothing left to do: all samples of all epochs are done")):
            trainer = self.train(daemon.address, rank, 2, data="synthetic:400", more=("--data-plan", "dynamic", "--batch-size", 8))
            self.assert_ends(trainer)
            self.assertIn(said, trainer.out)
        self.assert_ends(daemon)
        self.assertEqual(daemon.err.count("all epochs are done"), 1)

    def test_the_status_shows_the_sizes(self):
        daemon = self.daemon()
        trainer = self.sized(daemon, 1_000_000)
        status = daemon.until_status("it trains", lambda status: any(each["batch"] > 0 for each in status["trainers"]))
        self.assertEqual(status["trainers"][0]["nominal_batch"], 8)
        shown = self.start_psd("status", "--server", daemon.address)
        self.assert_ends(shown)
        self.assertRegex(shown.out, r"waits for +batch\n")
        self.assertTrue(trainer.runs())

    def test_sizes_cannot_be_chosen_for_a_static_plan(self):
        self.assert_fails(self.train("tcp://127.0.0.1:1", more=("--batch-size", "auto")),
                          "--batch-size auto needs --data-plan dynamic")


if __name__ == "__main__":
    processes.main()
