"""Trainers of two daemons that serve one model: they join, die, give up or become disconnected while one of the daemons
is down."""

import re
import signal

import counting
import processes

LEASE_MS = 1000


class SeveralTrainers(counting.CountingTest):
    def several(self, name="a", count=2, durable=True, **settings):
        self.addresses = [self.unix_address(f"{name}{index}.sock") for index in range(count)]
        self.settings = {"policy": "locked", "optimizer": counting.SGD, "durable": durable and name, **settings}
        return [self.one(index) for index in range(count)]

    def one(self, index):
        """One of several(), possibly replacing a dead one."""
        settings = dict(self.settings)
        if name := settings.pop("durable"):
            settings["durability"] = {"type": "log", "path": str(self.folder / f"{name}-{index}")}
        return self.daemon(listen=(self.addresses[index],), daemons=self.addresses, index=index, **settings)

    def trainer(self, rank=0, world_size=1, steps=counting.ENDLESS, more=()):
        """A psd-trainer that is training at both daemons."""
        return self.train(self.addresses[1], rank, world_size, steps=steps, more=more)

    def trains(self, daemon, rank=0):
        daemon.until_status(f"rank {rank} trains", lambda status: any(
            each["rank"] == rank and each["step"] > 2 for each in status["trainers"]))

    def test_a_trainer_gives_up_where_a_daemon_stays_away(self):
        for away in range(2):
            with self.subTest(away=away):
                daemons = self.several(f"{away}", durable=False)
                trainer = self.trainer(more=("--retry-timeout", 1))
                self.trains(daemons[1 - away])
                daemons[away].kill()
                self.assert_fails(trainer, f"daemon {away} of 2, {self.addresses[away]}")
                status = daemons[1 - away].until_status("no trainer is joined", lambda status: status["trainers"] == [])
                self.assertEqual(status["trainers_lost"], 0, "it has said goodbye")
                self.assertIn("rank 0 left after ", daemons[1 - away].err)

    def test_a_trainer_dies_while_a_daemon_is_away(self):
        """The other daemons end when all trainers are gone; the one that was down waits for the trainer until it is
        stopped."""
        lead, other = self.several(exit_when_done=True, world_size=1)
        trainer = self.trainer()
        self.trains(lead)
        other.kill()
        trainer.kill()
        self.assert_ends(lead)
        self.assertIn("stopping: all 1 trainers are gone; lost on the way: 1", lead.err)
        other = self.one(1)
        other.until_status("it waits for a trainer", lambda status: status["state"] != "stopping" and status["trainers"] == [])
        stopped = self.psd("stop", "--server", other.address)
        self.assertIn(f"{other.address} has stopped", stopped.stdout)
        self.assert_ends(other)

    def test_a_trainer_that_died_while_a_daemon_was_away_is_started_again(self):
        lead, other = self.several(exit_when_done=True, world_size=2)
        dies, stays = self.trainer(0, 2), self.trainer(1, 2)
        for rank in range(2):
            self.trains(lead, rank)
        other.kill()
        dies.kill()
        lead.until_status("the dead one is lost", lambda status: status["trainers_lost"] == 1)
        other = self.one(1)
        again = self.trainer(0, 2)
        for daemon in (lead, other):
            self.trains(daemon, 0)
            self.trains(daemon, 1)
        for trainer in (again, stays):
            trainer.signal(signal.SIGINT)
            trainer.wait()
        for daemon in (lead, other):
            self.assert_ends(daemon)

    def test_trainers_come_while_others_train(self):
        daemons = self.several(world_size={"min": 1, "max": 3})
        for rank in range(3):
            self.count(self.addresses[1], rank, 3)
            self.until_each_more(f"once rank {rank} has come")
            for daemon in daemons:
                self.assertEqual(sorted(each["rank"] for each in daemon.status()["trainers"]), list(range(rank + 1)))
        self.check_counts(daemons[0])

    def test_trainers_come_while_others_train_in_rounds(self):
        daemons = self.several(policy="sync", policy__round_timeout_ms=2_000, world_size={"min": 1, "max": 3})
        for rank in range(3):
            self.count(self.addresses[1], rank, 3, inflight=0)
            self.until_each_more(f"once rank {rank} has come")
        self.end_trainers()
        # A round is the mean of gradients that are all -1: a parameter counts its daemon's rounds.
        rounds = set().union(*(self.versions(daemon) for daemon in daemons))
        self.assertEqual(self.values(daemons[0]), {float(each) for each in rounds})
        self.assertGreaterEqual(min(rounds), max(self.answered_by_trainer()))
        self.assertLessEqual(max(rounds), self.answered())

    def test_while_a_daemon_is_down_pushes_to_the_other_continue(self):
        """Up to the number of pushes that a trainer may have in flight."""
        under_way = 200
        for away in range(2):
            with self.subTest(away=away):
                self.trainers = []
                for path in self.folder.glob("ledger-*"):
                    path.unlink()
                daemons = self.several(f"{away}")
                self.count(self.addresses[0], inflight=under_way)
                self.until_each_more("before a daemon dies")
                daemons[away].kill()
                answered = self.answered()
                daemons[1 - away].until_status("it has what was under way", lambda status: {
                    shard["version"] >= answered + under_way // 2 for shard in status["shards"]} == {True})
                self.assertLessEqual(self.answered(), answered + under_way)
                daemons[away] = self.one(away)
                self.until_each_more("once it is back", 2 * under_way)
                self.check_counts(daemons[0])

    def test_a_trainer_is_out_of_reach_while_the_model_moves(self):
        old = self.several(membership__lease_ms=LEASE_MS, membership__grace_ms=0)
        left_behind, stays = self.trainer(0, 2, more=("--retry-timeout", 1)), self.trainer(1, 2)
        for rank in range(2):
            self.trains(old[0], rank)
        left_behind.signal(signal.SIGSTOP)
        for daemon in old:
            daemon.until_status("it is lost", lambda status: status["trainers_lost"] == 1)
        new = self.several("b")
        self.assert_ends(self.start_psd("move", "--server", old[0].address, "--to", new[0].address))
        for daemon in old:
            self.assert_ends(daemon)
        left_behind.signal(signal.SIGCONT)
        line = self.assert_fails(left_behind)
        self.assertRegex(line, re.escape(old[0].address) + "|" + re.escape(old[1].address))
        self.trainer(0, 2)  # started again, it is admitted at the new ones
        for daemon in new:
            self.trains(daemon, 0)
        self.trains(new[0], 1)
        self.assertTrue(stays.runs())


if __name__ == "__main__":
    processes.main()
