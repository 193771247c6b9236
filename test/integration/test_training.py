"""Various numbers of trainers on both transports, in any order of starting, and the state when they are done."""

import json
import re
import struct

import processes

MNIST_CNN = {
    "conv1.weight": [32, 1, 3, 3], "conv1.bias": [32],
    "conv2.weight": [64, 32, 3, 3], "conv2.bias": [64],
    "fc1.weight": [128, 9216], "fc1.bias": [128],
    "fc2.weight": [10, 128], "fc2.bias": [10],
}


class Transports(processes.ProcessTest):
    STEPS = 6

    def run_world(self, daemon, address, world_size):
        before = [shard["version"] for shard in daemon.status()["shards"]] or [0] * 4
        trainers = [self.train(address, rank, world_size, steps=self.STEPS) for rank in range(world_size)]
        for trainer in trainers:
            self.assert_ends(trainer)
        status = daemon.until_status("all have left", lambda status: not status["trainers"])
        self.assertEqual(status["trainers_lost"], 0)
        return before, [shard["version"] for shard in status["shards"]]

    def check(self, policy):
        daemon = self.daemon(listen=("tcp://127.0.0.1:0", self.unix_address()), policy=policy, shards=4)
        self.assertEqual(daemon.status()["state"], "waiting for a model")
        for address in daemon.addresses:
            for world_size in (1, 2, 4):
                with self.subTest(policy=policy, address=address, world_size=world_size):
                    before, after = self.run_world(daemon, address, world_size)
                    # Each push of each trainer is one update of each shard; under hogwild all are counted, too.
                    self.assertEqual(after, [version + self.STEPS * world_size for version in before])
        status = daemon.status()
        self.assertEqual(status["counters"]["refused_slices"], 0)
        self.assertEqual(status["counters"]["connections_dropped"], 0)
        self.assert_stops(daemon)

    def test_hogwild(self):
        self.check("hogwild")

    def test_locked(self):
        self.check("locked")


class Overlap(processes.ProcessTest):
    def test_every_push_is_applied_and_the_model_learns(self):
        for name, policy, more in (("hogwild", "hogwild", ()), ("locked", "locked", ()),
                                   ("connections", "locked", ("--connections", 3, "--transport", "rpc"))):
            with self.subTest(name):
                daemon = self.daemon(listen=(self.unix_address(f"{name}.sock"),), policy=policy, shards=3)
                metrics = self.folder / f"{name}.jsonl"
                trainer = self.train(daemon.address, data="synthetic:3200", steps=400,
                                     more=("--inflight", 2, "--prefetch", "--metrics", metrics, *more))
                self.assert_ends(trainer)
                status = daemon.until_status("it has left", lambda status: not status["trainers"])
                self.assertEqual([shard["version"] for shard in status["shards"]], [400] * 3)
                self.assertEqual(status["counters"]["gradients"], 400)
                self.assertEqual(status["counters"]["updates"], 400 * 3)
                self.assertEqual(status["counters"]["refused_slices"], 0)
                lines = [json.loads(line) for line in metrics.read_text().splitlines()]
                self.assertEqual(len(lines), 400)
                self.assertLessEqual(max(line["inflight"] for line in lines), 2)
                # A prefetched pull may miss the pushes in flight: two, and that of the step that it overlaps.
                self.assertLessEqual(max(line["staleness"] for line in lines), 4)
                self.assertLess(sum(line["loss"] for line in lines[-20:]) / 20, 0.5, "a guess costs 2.3")


class OwnSteps(processes.ProcessTest):
    """Trainers that take local steps."""

    STEPS, PERIOD, TRAINERS = 120, 5, 3

    def check(self, policy, updates, **options):
        daemon = self.daemon(policy=policy, shards=3, optimizer='{"type":"sgd","lr":0.05}', policy__period=self.PERIOD,
                             **{f"policy__{key}": value for key, value in options.items()})
        trainers = [self.train(daemon.address, rank, self.TRAINERS, data="synthetic:3200", steps=self.STEPS)
                    for rank in range(self.TRAINERS)]
        for trainer in trainers:
            self.assert_ends(trainer)
        status = daemon.until_status("all have left", lambda status: not status["trainers"])
        self.assertEqual({shard["version"] for shard in status["shards"]}, {updates})
        accuracy = float(re.search(r"test .*accuracy ([0-9.]+) %", trainers[0].out).group(1))
        self.assertGreater(accuracy, 80, "a guess is right in 10 %")

    def test_easgd(self):
        self.check("easgd", self.TRAINERS * self.STEPS // self.PERIOD, alpha=0.3)

    def test_local_sgd_with_slow_momentum(self):
        self.check("local_sgd", self.STEPS // self.PERIOD, start_trainers=self.TRAINERS, slow_momentum=0.3)


class StartOrders(processes.ProcessTest):
    def test_trainers_wait_for_the_daemon(self):
        address = self.unix_address()
        trainers = [self.train(address, rank, 2, steps=3) for rank in range(2)]
        # A daemon on another address is ready, and the trainers are still trying.
        other = self.daemon()
        self.assertTrue(all(trainer.runs() for trainer in trainers))
        self.assertEqual(other.counter("trainers_joined"), 0)
        daemon = self.daemon(listen=(address,))
        for trainer in trainers:
            self.assert_ends(trainer)
        self.assertEqual(daemon.counter("trainers_joined"), 2)

    def test_a_trainer_joins_late(self):
        daemon = self.daemon()
        first = self.endless_trainer(daemon, 0, 2)
        late = self.train(daemon.address, 1, 2, steps=3)
        self.assert_ends(late)
        self.assertIn("the model has values", late.err)
        self.assertTrue(first.runs())

    def test_values_do_not_depend_on_the_initializer(self):
        saved = []
        for rank in (0, 1):
            path = self.folder / f"rank{rank}.safetensors"
            daemon = self.daemon(save=str(path), optimizer='{"type":"sgd","lr":0}')
            trainer = self.train(daemon.address, rank, 2, steps=1)
            self.assert_ends(trainer)
            self.assertIn("initialized the model", trainer.err)
            self.assert_stops(daemon)
            saved.append(path.read_bytes())
        self.assertEqual(saved[0], saved[1])


class Done(processes.ProcessTest):
    def evaluate(self, address, model, data, *more):
        """The output of eval --json."""
        trainer = self.start_trainer("eval", "--server", address, "--model", model, "--data", data, "--threads", 1, "--json", *more)
        self.assert_ends(trainer)
        return json.loads(trainer.out)

    def read_safetensors(self, path):
        """Name -> shape, after checking that the tensors fill the file without a gap."""
        content = path.read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8:8 + size])
        header.pop("__metadata__", None)
        end = 0
        for tensor in sorted(header.values(), key=lambda tensor: tensor["data_offsets"]):
            self.assertEqual(tensor["dtype"], "F32")
            self.assertEqual(tensor["data_offsets"][0], end)
            elements = 1
            for length in tensor["shape"]:
                elements *= length
            end += 4 * elements
            self.assertEqual(tensor["data_offsets"][1], end)
        self.assertEqual(len(content), 8 + size + end)
        return {name: tensor["shape"] for name, tensor in header.items()}

    def test_the_daemon_ends_with_its_trainers_and_what_it_saved_is_served(self):
        path = self.folder / "model.safetensors"
        daemon = self.daemon(exit_when_done=True, save=str(path), policy="locked", optimizer='{"type":"sgd","lr":0.1}')
        trainers = [self.train(daemon.address, rank, 2, "mnist_cnn", "synthetic:1600") for rank in range(2)]
        for process in (*trainers, daemon):
            self.assert_ends(process)
        self.assertEqual(self.read_safetensors(path), MNIST_CNN)

        serving = self.daemon(model__file=str(path))
        self.assertEqual(serving.status()["state"], "serving")
        report = self.evaluate(serving.address, "mnist_cnn", "synthetic:1600")
        self.assertEqual(report["samples"], 400)
        self.assertGreater(report["accuracy"], 0.5, "a guess is right one time in ten")
        self.assertEqual(serving.counter("trainers_joined"), 0)
        self.assert_stops(serving)

    def test_two_trainers_teach_a_residual_net(self):
        daemon = self.daemon(policy="locked", optimizer='{"type":"sgd","lr":0.1}')
        for trainer in [self.train(daemon.address, rank, 2, "resnet20:width=4", "synthetic:1600", steps=60) for rank in range(2)]:
            self.assert_ends(trainer)
        report = self.evaluate(daemon.address, "resnet20:width=4", "synthetic:1600")
        self.assertEqual((report["samples"], report["versions"]), (400, [120] * 4))
        self.assertGreater(report["accuracy"], 0.5, "a guess is right one time in ten")

    def test_two_trainers_of_bfloat16_teach_with_half_the_bytes(self):
        moved = {}
        for dtype in ("f32", "bf16"):
            daemon = self.daemon(policy="locked", optimizer='{"type":"sgd","lr":0.1}')
            metrics = self.folder / f"{dtype}.jsonl"
            more = ("--dtype", dtype, "--transport", "rpc")
            trainers = [self.train(daemon.address, rank, 2, "mlp", "synthetic:1600", steps=60,
                                   more=more if rank else (*more, "--metrics", metrics)) for rank in range(2)]
            for trainer in trainers:
                self.assert_ends(trainer)
            moved[dtype] = sum(json.loads(line)["push_bytes"] for line in metrics.read_text().splitlines() if "push_bytes" in line)
        self.assertLessEqual(moved["bf16"], 0.51 * moved["f32"])
        report = self.evaluate(daemon.address, "mlp", "synthetic:1600", "--dtype", "bf16")
        self.assertGreater(report["accuracy"], 0.5, "a guess is right one time in ten")
        self.assert_fails(self.train(daemon.address, steps=2), "fc1.weight", "bf16[256,784]", "f32[256,784]")
        self.assert_fails(self.train(daemon.address, steps=2, more=("--dtype", "f64")), "--dtype", "f32, bf16 or f16")
        self.assert_fails(self.train(daemon.address, model="mf", data="ratings:samples=64", steps=2, more=("--dtype", "bf16")),
                          "--model", "embedding tables")

    def test_it_waits_for_all_of_the_world(self):
        daemon = self.daemon(exit_when_done=True)
        self.assert_ends(self.train(daemon.address, 0, 2, steps=2))
        daemon.until_status("rank 0 has left", lambda status: not status["trainers"])
        self.assertTrue(daemon.runs())
        self.assert_ends(self.train(daemon.address, 1, 2, steps=2))
        self.assert_ends(daemon)

    def test_saved_is_what_was_served(self):
        path = self.folder / "model.safetensors"
        daemon = self.daemon(save=str(path))
        self.assert_ends(self.train(daemon.address, steps=20))
        before = self.evaluate(daemon.address, "mlp", "synthetic:128")
        self.assertEqual(before["versions"], [20] * 4)
        self.assert_stops(daemon)
        after = self.evaluate(self.daemon(model__file=str(path)).address, "mlp", "synthetic:128")
        self.assertEqual((before["loss"], before["accuracy"]), (after["loss"], after["accuracy"]))

    def test_eval_of_a_daemon_without_a_model(self):
        daemon = self.daemon()
        trainer = self.start_trainer("eval", "--server", daemon.address, "--model", "mlp", "--data", "synthetic:64")
        self.assert_fails(trainer, "no model yet")
        self.assert_serves(daemon)


if __name__ == "__main__":
    processes.main()
