#!/usr/bin/env python3
"""Trainers that come and go while training runs, with ranks that the daemon gives them."""

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
        second.kill()
        fourth = self.auto(daemon, more=("--steps", 5))
        self.assert_ends(fourth)
        self.assertIn("rank 1 of 3 joined", fourth.err)
        self.assertIn("rank 1  done after 5 steps", fourth.out)
        self.assertTrue(first.runs() and third.runs())

    def test_the_daemon_ends_when_enough_have_come_and_all_have_gone(self):
        daemon = self.daemon(world_size={"min": 2, "max": 5}, exit_when_done=True)
        first = self.auto(daemon)
        self.until_ranks(daemon, 0)
        self.assert_ends(self.auto(daemon, more=("--steps", 3)))
        self.assertTrue(daemon.runs())
        first.kill()
        self.assert_ends(daemon)
        self.assertIn("all trainers are done", daemon.err)

    def test_without_a_world_size_anywhere_it_is_asked_for(self):
        daemon = self.daemon()
        self.assert_fails(self.auto(daemon), "nobody says how many trainers there are")
        self.assert_ends(self.auto(daemon, more=("--world-size", 2, "--steps", 2)))


class DealtData(processes.ProcessTest):
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


if __name__ == "__main__":
    processes.main()
