#!/usr/bin/env python3
"""A daemon that is killed in mid-training and started again: the trainers go on by themselves."""

import processes

TRAINERS = 2
STEPS = 600
KILLS = 3
PERIOD = 8  # of easgd: steps between exchanges, its default


class KilledDaemon(processes.ProcessTest):
    def start(self, durability, policy):
        # The same address every time: trainers come back to where they left.
        return self.daemon(listen=(self.unix_address(),), policy=policy, shards=2, durability=durability)

    def train_through(self, durability, policy="locked", pushes=STEPS):
        """Two trainers with so many pushes each, a daemon that is killed again and again; its status after the end."""
        daemon = self.start(durability, policy)
        trainers = [self.train(daemon.address, rank, TRAINERS, steps=STEPS) for rank in range(TRAINERS)]
        for kill in range(1, KILLS + 1):
            target = kill * pushes // (KILLS + 2)
            daemon.until_status(f"both have made {target} pushes",
                                lambda status: len(status["trainers"]) == TRAINERS
                                and all(trainer["step"] >= target for trainer in status["trainers"]))
            daemon.kill()
            daemon = self.start(durability, policy)
        for trainer in trainers:
            self.assert_ends(trainer)
            self.assertEqual(trainer.err.count("back after"), KILLS, trainer.err)
            self.assertIn(f"done after {STEPS} steps", trainer.out)
        return daemon.until_status("both have left", lambda status: not status["trainers"])

    def test_with_a_log_every_push_is_in_the_model_once(self):
        status = self.train_through({"type": "log", "path": str(self.folder / "saved")})
        self.assertEqual([shard["version"] for shard in status["shards"]], [TRAINERS * STEPS] * 2)

    def test_with_a_log_no_exchange_of_easgd_is_lost(self):
        path = self.folder / "saved"
        status = self.train_through({"type": "log", "path": str(path)}, "easgd", STEPS // PERIOD)
        exchanges = TRAINERS * STEPS // PERIOD
        self.assertEqual([shard["version"] for shard in status["shards"]], [exchanges] * 2)
        replayed = self.start_psd("replay", path)
        self.assert_ends(replayed)
        self.assertIn(f"shards at update {exchanges}, {exchanges}", replayed.out)

    def test_with_checkpoints_what_came_after_the_last_one_is_missing(self):
        every = 50
        status = self.train_through({"type": "checkpoint", "path": str(self.folder / "saved"), "every_updates": every,
                                     "every_seconds": 0})
        for shard in status["shards"]:
            self.assertLessEqual(shard["version"], TRAINERS * STEPS)
            self.assertGreater(shard["version"], TRAINERS * STEPS // 2, "it began anew")

    def test_without_either_a_trainer_brings_what_it_has(self):
        daemon = self.daemon(listen=(self.unix_address(),))
        trainer = self.endless_trainer(daemon)
        daemon.kill()
        daemon = self.daemon(listen=(self.unix_address(),))
        daemon.until_status("it trains again", lambda status: status["trainers"] and status["shards"][0]["version"] > 2)
        self.assertIn("this trainer brought its newest parameters", trainer.err)


if __name__ == "__main__":
    processes.main()
