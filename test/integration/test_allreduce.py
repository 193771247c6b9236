"""Trainers under policy allreduce, which average the gradients of tensors among themselves: compared with rounds of
sync, with tables at the daemon, with one of three that dies or is stopped, a late trainer, and a daemon that is killed."""

import json
import signal

import processes

DENSE = '{"type":"adam","lr":0.01}'
DLRM = "dlrm:dim=4,hidden=8"
CLICKS = "clicks:samples=4000,scale=100000"


def averaging(status):
    """The averaging group of the parameter group; at step 0 before the model is initialized."""
    for group in status["rounds"]:
        if group["generation"] is not None:
            return group
    return {"closed": 0, "generation": 0, "in": []}


class AllReduce(processes.ProcessTest):
    def averages(self, *arguments, optimizer=DENSE, start_trainers=3, timeout_ms=60_000, name="psd.sock", **settings):
        return self.daemon(*arguments, policy="allreduce", optimizer=optimizer, listen=(self.unix_address(name),), shards=3,
                           policy__timeout_ms=timeout_ms, policy__start_trainers=start_trainers, **settings)

    def values(self, daemon, name):
        path = self.folder / name
        exported = self.start_psd("export", "--server", daemon.address, path)
        self.assert_ends(exported)
        return [value for _, values in processes.safetensors(path).values() for value in values]

    def until_averaged(self, daemon, ranks, more=3):
        """Until an averaging group of exactly these ranks has made `more` more steps."""
        seen = {}

        def further(status):
            group = averaging(status)
            if group["in"] != ranks:
                return False
            return group["closed"] >= seen.setdefault(group["generation"], group["closed"]) + more

        return daemon.until_status(f"ranks {ranks} average", further)

    def assert_like(self, one, other):
        self.assertEqual(len(one), len(other))
        largest = max(abs(value) for value in other)
        self.assertLessEqual(max(abs(a - b) for a, b in zip(one, other)), 1e-6 * largest)

    def test_the_same_as_rounds_of_sync(self):
        found = {}
        for policy, steps in (("sync", 12), ("allreduce", 12)):
            daemon = self.daemon(policy=policy, optimizer='{"type":"sgd","lr":0.05,"momentum":0.9}', shards=3, policy__start_trainers=3,
                                 listen=(self.unix_address(f"{policy}.sock"),),
                                 **({"policy__bucket_bytes": 65536} if policy == "allreduce" else {}))
            trainers = [self.train(daemon.address, rank, 3, data="synthetic:960", steps=steps) for rank in range(3)]
            for trainer in trainers:
                self.assert_ends(trainer)
            status = daemon.until_status("all have left", lambda status: not status["trainers"])
            self.assertEqual({shard["version"] for shard in status["shards"]}, {steps})
            found[policy] = self.values(daemon, f"{policy}.safetensors")
            if policy == "allreduce":
                self.assertEqual(status["counters"]["gradients"], steps, "one of three pushes")
                self.assertEqual(averaging(status)["closed"], steps)
        self.assert_like(found["allreduce"], found["sync"])

    def test_one_alone(self):
        daemon = self.averages(start_trainers=1)
        trainer = self.train(daemon.address, steps=5)
        self.assert_ends(trainer)
        self.assertEqual({shard["version"] for shard in daemon.status()["shards"]}, {5})

    def test_uneven_shares_end_one_after_the_other(self):
        daemon = self.averages()
        trainers = [self.train(daemon.address, rank, 3, steps=steps) for rank, steps in enumerate((4, 9, 14))]
        for trainer in trainers:
            self.assert_ends(trainer)
        self.assertEqual({shard["version"] for shard in daemon.status()["shards"]}, {14})

    def test_tables_at_the_daemon(self):
        """Each trainer pushes its rows to the daemon; one pushes the average of the rest."""
        groups = json.dumps([{"match": "category*", "policy": {"type": "hogwild"}, "optimizer": {"type": "adagrad", "lr": 0.05}}])
        daemon = self.averages(groups=groups, row_shards=2, start_trainers=2)
        trainers = [self.start_trainer("train", "--server", daemon.address, "--rank", rank, "--world-size", 2, "--model", DLRM,
                                       "--data", CLICKS, "--threads", 1, "--epochs", 2) for rank in range(2)]
        for trainer in trainers:
            self.assert_ends(trainer)
        status = daemon.until_status("all have left", lambda status: not status["trainers"])
        steps = averaging(status)["closed"]
        self.assertGreater(steps, 50)
        self.assertEqual({shard["version"] for shard in status["shards"]}, {steps})
        self.assertEqual({shard["version"] for shard in status["row_shards"]}, {2 * steps})
        self.assertGreater(sum(table["rows"] for table in status["tables"]), 100)
        self.assertEqual(status["counters"]["gradients"], 3 * steps, "the average, and the rows of two")
        scored = self.start_trainer("eval", "--server", daemon.address, "--model", DLRM, "--data", CLICKS, "--json")
        self.assert_ends(scored)

    def test_one_of_three_dies_or_stands_still_and_another_comes(self):
        # The lease is so long that only timeout_ms can make the others continue during this test.
        daemon = self.averages(membership__lease_ms=600_000, timeout_ms=4000)
        trainers = [self.train(daemon.address, rank, 3, steps=10_000_000) for rank in range(3)]
        self.until_averaged(daemon, [0, 1, 2])
        trainers[2].kill()
        self.until_averaged(daemon, [0, 1])
        trainers[2] = self.train(daemon.address, 2, 3, steps=10_000_000)
        first = averaging(self.until_averaged(daemon, [0, 1, 2]))["generation"]
        trainers[0].signal(signal.SIGSTOP)  # the one that pushes
        status = self.until_averaged(daemon, [1, 2])
        self.assertEqual(len(status["trainers"]), 3, "it still counts as in")
        trainers[0].signal(signal.SIGCONT)
        status = self.until_averaged(daemon, [0, 1, 2])
        self.assertGreater(averaging(status)["generation"], first)
        trainers[0].kill()
        self.until_averaged(daemon, [1, 2])
        events = self.start_psd("events", "--server", daemon.address)
        self.assert_ends(events)
        self.assertRegex(events.out, r"allreduce: generation \d+ of ranks 1, 2")
        self.assertIn("averaging", self.text_of(daemon))

    def text_of(self, daemon):
        shown = self.start_psd("status", "--server", daemon.address)
        self.assert_ends(shown)
        return shown.out

    def test_the_daemon_is_killed(self):
        folder = self.folder / "kept"
        durable = {"durability": json.dumps({"type": "log", "path": str(folder)})}
        daemon = self.averages(start_trainers=2, timeout_ms=4000, **durable)
        trainers = [self.train(daemon.address, rank, 2, steps=10_000_000) for rank in range(2)]
        before = averaging(self.until_averaged(daemon, [0, 1]))["closed"]
        daemon.kill()
        daemon = self.averages(start_trainers=2, timeout_ms=4000, **durable)
        status = self.until_averaged(daemon, [0, 1])
        self.assertGreater({shard["version"] for shard in status["shards"]}.pop(), before)
        for trainer in trainers:
            self.assertTrue(trainer.runs())

    def test_unsupported_settings_are_refused(self):
        daemon = self.averages(start_trainers=1)
        for more, words in ((("--inflight", 2), ("--inflight and --prefetch cannot be combined with policy allreduce",)),
                            (("--data-plan", "dynamic"), ("--data-plan dynamic",)),
                            (("--codec", "fp16"), ("codec 'fp16' cannot be combined with policy allreduce",)),
                            (("--allreduce-host", "192.0.2.1"), ("--allreduce-host", "192.0.2.1"))):
            self.assert_fails(self.train(daemon.address, more=more), *words)
        self.assert_fails(self.start_trainer("bench", "push", "--server", daemon.address, "--seconds", 0.1), "average gradients among themselves")
        mixed = json.dumps([{"match": "*bias", "policy": {"type": "hogwild"}}])
        daemon = self.averages(name="mixed.sock", groups=mixed)
        self.assert_fails(self.train(daemon.address), "all tensors of a model are in one group under allreduce")
        tables = self.averages(name="tables.sock")
        self.assert_fails(self.start_trainer("train", "--server", tables.address, "--model", DLRM, "--data", CLICKS), "allreduce is not for embedding tables")
        self.assert_fails(self.start_psd("--set", "policy.type=allreduce", "--set", "policy.timeout_ms=1"), "policy.timeout_ms")


if __name__ == "__main__":
    processes.main()
