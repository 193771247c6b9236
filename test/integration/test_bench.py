"""psd-trainer bench as run by a user, and the state that it leaves at the daemon."""

import json
import resource

import processes

ADDRESS_SPACE = 64 << 30  # bytes; LibTorch maps some gigabytes


class Bench(processes.ProcessTest):
    def bench(self, daemon, operation, *flags):
        """The output of bench --json."""
        trainer = self.start_trainer("bench", operation, "--server", daemon.address, "--json", *flags)
        self.assert_ends(trainer)
        self.assertEqual(len(trainer.out.splitlines()), 1, trainer.out)
        return json.loads(trainer.out)

    def assert_has_left(self, daemon):
        status = daemon.until_status("all have left", lambda status: not status["trainers"])
        self.assertEqual(status["trainers_lost"], 0)
        self.assertEqual(status["counters"]["refused_slices"], 0)
        return status

    def test_the_model_that_it_leaves_is_said_to_be_one(self):
        daemon = self.daemon()
        self.bench(daemon, "push", "--size", "64K", "--seconds", 0.1)
        self.assert_has_left(daemon)
        self.assert_fails(self.train(daemon.address), "does not match", "is the model of psd-trainer bench: restart the daemon")

    def test_a_training_step(self):
        for policy, more in (("hogwild", ()), ("hogwild", ("--inflight", 2, "--prefetch")), ("locked", ("--transport", "rpc"))):
            with self.subTest(policy=policy, more=more):
                daemon = self.daemon(policy=policy, shards=3, listen=(self.unix_address(f"{len(self.processes)}.sock"),))
                report = self.bench(daemon, "train", "--model", "mlp", "--batch-size", 4, "--threads", 1, "--device", "cpu",
                                    "--seconds", 0.2, *more)
                self.assertEqual((report["operation"], report["policy"], report["device"]), ("train", policy, "cpu"))
                self.assertGreater(report["local_median_s"], 0)
                self.assertGreaterEqual(report["server_median_s"], report["compute_median_s"])
                self.assertAlmostEqual(report["ratio"], report["server_median_s"] / report["local_median_s"])
                versions = [shard["version"] for shard in self.assert_has_left(daemon)["shards"]]
                # The measured steps, those of the warm-up, and the first of every block.
                self.assertGreater(versions[0], report["steps"])
                self.assertEqual(versions, versions[:1] * 3, "every push reached every shard")
                self.assert_stops(daemon)

    def test_somebodys_model_is_left_alone(self):
        daemon = self.daemon()
        self.assert_ends(self.train(daemon.address, model="mlp", steps=3))
        before = daemon.status()["shards"]
        for operation, more in (("train", ("--model", "mlp", "--batch-size", 4, "--threads", 1)), ("push", ("--size", "1M"))):
            bench = self.start_trainer("bench", operation, "--server", daemon.address, "--seconds", 0.1, *more)
            self.assert_fails(bench, "the model does not match")
        self.assertEqual(daemon.status()["shards"], before)

    def test_more_than_there_is_memory(self):
        daemon = self.daemon()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, before[1]))  # some systems overcommit any amount
        try:
            bench = self.start_trainer("bench", "pull", "--server", daemon.address, "--size", 2 * ADDRESS_SPACE)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        self.assert_fails(bench, "--size", "no memory")
        self.assert_serves(daemon)

    def test_transfers_and_calls(self):
        daemon = self.daemon(listen=(self.unix_address(), "tcp://127.0.0.1:0"))
        for operation, transport in (("pull", "shm"), ("pull", "rpc"), ("push", "auto"), ("push", "shm"), ("pushpull", "rpc"),
                                     ("latency", "rpc")):
            with self.subTest(operation=operation, transport=transport):
                flags = () if operation == "latency" else ("--size", "3M", "--transport", transport)
                report = self.bench(daemon, operation, "--seconds", 0.1, *flags)
                self.assertEqual(report["operation"], operation)
                if operation != "latency":
                    way = "rpc" if transport == "rpc" else "shm"
                    self.assertEqual((report["pull_transport"], report["push_transport"]), (way, way))
                self.assertGreater(report["rounds"], 0)
                self.assertGreaterEqual(report["p99_s"], report["median_s"])
                self.assertEqual(report["bytes"], 0 if operation == "latency" else 3 << 20)
                directions = {"latency": 0, "pushpull": 2}.get(operation, 1)
                self.assertEqual(report["wire_bytes"], directions * report["bytes"], "a gradient of zeros does not travel")
                self.assert_has_left(daemon)
        self.assert_stops(daemon)

    def test_pushes_are_those_of_rounds_where_there_are_some(self):
        for trainers in (1, 2):
            daemon = self.daemon(listen=(self.unix_address(f"{trainers}.sock"),), shards=2, policy="sync")
            report = self.bench(daemon, "push", "--seconds", 0.3, "--size", "1M", "--trainers", trainers)
            status = self.assert_has_left(daemon)
            if trainers == 1:
                self.assertEqual(status["counters"]["late_pushes"], 0)
            # A round takes one push of each joined trainer; each has pushed once more to warm up.
            pushes = report["rounds"] + trainers
            for shard in status["shards"]:
                self.assertGreaterEqual(shard["version"] * trainers, pushes)
                self.assertLessEqual(shard["version"], pushes)

    def test_trainers_are_processes(self):
        daemon = self.daemon(listen=(self.unix_address(),), shards=2)
        trainer = self.start_trainer("bench", "pushpull", "--server", daemon.address, "--json", "--size", "1M", "--seconds", 0.5,
                                     "--trainers", 3)
        status = daemon.until_status("all are in", lambda status: len(status["trainers"]) == 3)
        self.assertEqual(len({each["pid"] for each in status["trainers"]} - {trainer.pid}), 3)
        self.assert_ends(trainer)
        report = json.loads(trainer.out)
        self.assertEqual(report["trainers"], 3)
        self.assertGreater(report["fairness"], 0)
        self.assertLessEqual(report["fairness"], 1)
        # Each trainer has pushed once more to warm up.
        versions = [shard["version"] for shard in self.assert_has_left(daemon)["shards"]]
        self.assertEqual(versions, [report["rounds"] + 3] * 2)

    def test_several_connections(self):
        daemon = self.daemon(listen=(self.unix_address(),), shards=3)
        trainer = self.start_trainer("bench", "pushpull", "--server", daemon.address, "--json", "--size", "1M", "--seconds", 3,
                                     "--connections", 4, "--transport", "rpc")
        daemon.until_status("it has as many as there are shards",
                            lambda status: [each["connections"] for each in status["trainers"]] == [3])
        table = self.start_psd("status", "--server", daemon.address)
        self.assert_ends(table)
        self.assertRegex(table.out, r"waits for +connections")
        self.assert_ends(trainer)
        report = json.loads(trainer.out)
        self.assertEqual((report["connections"], report["pull_transport"]), (3, "rpc"))
        versions = [shard["version"] for shard in self.assert_has_left(daemon)["shards"]]
        self.assertEqual(versions, [report["rounds"] + 1] * 3)
        self.assertEqual(self.bench(daemon, "pushpull", "--size", "1M", "--seconds", 0.1, "--connections", 2)["connections"], 1,
                         "memory is shared over one")

    def test_trainers_that_fail(self):
        daemon = self.daemon(world_size=2)
        trainer = self.start_trainer("bench", "pull", "--server", daemon.address, "--size", "1M", "--trainers", 3)
        self.assert_fails(trainer, "3", "2")
        self.assertEqual(daemon.until_status("they are gone", lambda status: not status["trainers"])["trainers_lost"], 0)

    def test_trainers_end_with_the_bench(self):
        daemon = self.daemon()
        trainer = self.start_trainer("bench", "push", "--server", daemon.address, "--size", "1M", "--seconds", 3600,
                                     "--trainers", 2)
        daemon.until_status("both push", lambda status: sum(each["step"] > 2 for each in status["trainers"]) == 2)
        trainer.kill()
        daemon.until_status("both are gone", lambda status: status["trainers_lost"] == 2)

    def test_human_readable_text(self):
        daemon = self.daemon()
        trainer = self.start_trainer("bench", "pull", "--server", daemon.address, "--size", "1M", "--seconds", 0.05)
        self.assert_ends(trainer)
        self.assertIn("pull  1 trainer(s), policy hogwild, cpu, pulls by rpc, pushes by rpc", trainer.out)
        self.assertIn("GB/s", trainer.out)

    def test_no_daemon(self):
        trainer = self.start_trainer("bench", "train", "--server", self.unix_address("none.sock"), "--connect-timeout", 0.1)
        self.assert_fails(trainer, "none.sock")


if __name__ == "__main__":
    processes.main()
