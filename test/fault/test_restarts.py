"""A daemon that a service manager restarts repeatedly by SIGTERM while trainers push: the run continues, and every push
is in the model once."""

import signal

import ledgers
import processes
import schedule

RESTARTS = 20 if processes.LONG else 8
PUSHES = 200 * RESTARTS
BETWEEN = 60  # answers, at least


class Restarts(processes.ProcessTest):
    def setUp(self):
        self.ledgers = {}  # by rank

    def start_daemon(self, policy, durability):
        # Prevents a round of one trainer while the other reconnects.
        settings = {"policy__quorum": 2} if policy == "sync" else {}
        return self.daemon(listen=(self.unix_address(),), policy=policy, optimizer='{"type":"sgd","lr":1}', shards=3, threads=2,
                           durability={"type": durability, "path": str(self.folder / "saved")}, **settings)

    def answered(self, rank):
        return self.ledgers.setdefault(rank, ledgers.Ledger(rank, self.folder / f"rank-{rank}")).answered()

    def restart(self, daemon, policy, durability):
        """The old daemon ends in an orderly way, and reports whether its trainers wait for the next one."""
        self.assert_stops(daemon)
        self.assertIn("stopping: SIGTERM; trainers wait for the next daemon", daemon.err)
        self.assertNotIn("is lost", daemon.err)
        self.assertNotIn("with requests still in flight", daemon.err)
        return self.start_daemon(policy, durability)

    def train_through_restarts(self, policy, durability, trainers, inflight):
        daemon = self.start_daemon(policy, durability)
        pushing = []
        for rank in range(trainers):
            pushing.append(processes.Process(self.folder, f"trainer-{rank}", [
                schedule.COUNTING_TRAINER, daemon.address, rank, trainers, PUSHES, inflight, self.folder / f"rank-{rank}", "cpu",
                4096, "ones"]))
        self.processes += pushing
        for restart in range(1, RESTARTS + 1):
            moment = min(self.answered(rank) for rank in range(trainers)) + BETWEEN
            processes.until(f"{moment} answers", lambda: min(map(self.answered, range(trainers))) >= moment, interval=0.002)
            self.assertTrue(all(trainer.runs() for trainer in pushing), f"done before restart {restart}")
            daemon = self.restart(daemon, policy, durability)
        for trainer in pushing:
            self.assertEqual(trainer.wait(), 0, trainer.err)
        updates = PUSHES if policy == "sync" else PUSHES * trainers
        self.assertEqual({shard["version"] for shard in daemon.status()["shards"]}, {updates})
        self.assert_stops(daemon)
        exported = self.folder / "model.safetensors"
        self.assert_ends(self.start_psd("export", self.folder / "saved", "--to", exported))
        for name, (_, values) in processes.safetensors(exported).items():
            self.assertEqual({*values}, {float(updates)}, name)

    def test_under_locks_with_a_log(self):
        self.train_through_restarts("locked", "log", trainers=2, inflight=4)

    def test_under_locks_with_checkpoints(self):
        self.train_through_restarts("locked", "checkpoint", trainers=2, inflight=4)

    def test_in_synchronous_rounds(self):
        self.train_through_restarts("sync", "log", trainers=2, inflight=0)

    def test_hogwild(self):
        """A single trainer, without concurrent pushes."""
        self.train_through_restarts("hogwild", "checkpoint", trainers=1, inflight=4)

    def test_hogwild_with_a_log(self):
        self.train_through_restarts("hogwild", "log", trainers=1, inflight=4)

    def test_the_log_has_each_push_that_raced(self):
        """Although races may lose updates in the killed daemon, its successor replays the pushes one after the other."""
        daemon = self.start_daemon("hogwild", "log")
        pushing = [processes.Process(self.folder, f"trainer-{rank}", [
            schedule.COUNTING_TRAINER, daemon.address, rank, 2, PUSHES, 4, self.folder / f"rank-{rank}", "cpu", 4096, "ones"])
            for rank in range(2)]
        self.processes += pushing
        for trainer in pushing:
            self.assertEqual(trainer.wait(), 0, trainer.err)
        daemon.kill()
        daemon = self.start_daemon("hogwild", "log")
        self.assertEqual({shard["version"] for shard in daemon.status()["shards"]}, {2 * PUSHES})
        exported = self.folder / "model.safetensors"
        self.assert_ends(self.start_psd("export", "--server", daemon.address, "--to", exported))
        self.assertEqual(processes.all_values(exported), {float(2 * PUSHES)})


class Ends(processes.ProcessTest):
    def trained(self, *how, **settings):
        """A trainer that was working when `how` ended the daemon."""
        daemon = self.daemon(listen=(self.unix_address(),), policy="locked", **settings)
        trainer = processes.Process(self.folder, "trainer", [
            schedule.COUNTING_TRAINER, daemon.address, 0, 1, 10**9, 1, self.folder / "rank-0", "cpu", 4096, "ones"])
        self.processes.append(trainer)
        daemon.until_status("it trains", lambda status: any(each["step"] > 5 for each in status["trainers"]))
        for each in how:
            each(daemon)
        self.assert_ends(daemon)
        return trainer

    def stop(self, daemon):
        self.assert_ends(self.start_psd("stop", "--discard", "--server", daemon.address))

    def durable(self):
        return {"type": "log", "path": str(self.folder / "saved")}

    def assert_end_announced(self, trainer):
        self.assertEqual(trainer.wait(), 1)
        self.assertIn("is shutting down", trainer.err)

    def test_psd_stop_ends_the_run(self):
        self.assert_end_announced(self.trained(self.stop, durability=self.durable()))

    def test_sigint_ends_the_run(self):
        self.assert_end_announced(self.trained(lambda daemon: daemon.signal(signal.SIGINT), durability=self.durable()))

    def test_sigterm_ends_the_run_where_nothing_is_kept(self):
        self.assert_end_announced(self.trained(lambda daemon: daemon.signal(signal.SIGTERM)))

    def test_sigterm_ends_the_run_if_the_next_daemon_starts_from_scratch(self):
        durability = {**self.durable(), "resume": "none"}
        self.assert_end_announced(self.trained(lambda daemon: daemon.signal(signal.SIGTERM), durability=durability))

    def test_the_trainer_waits_after_sigterm(self):
        trainer = self.trained(lambda daemon: daemon.signal(signal.SIGTERM), durability=self.durable())
        ledger = ledgers.Ledger(0, self.folder / "rank-0")
        before = ledger.answered()
        self.daemon(listen=(self.unix_address(),), policy="locked", durability=self.durable())
        processes.until("it continues", lambda: ledger.answered() > before + 10)
        self.assertTrue(trainer.runs())


if __name__ == "__main__":
    processes.main()
