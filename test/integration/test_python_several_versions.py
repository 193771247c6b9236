"""Versions of a model that several daemons serve. Every round adds 1 to every element, so each element says how many
rounds it is of, and a mixture of two moments is visible in any of them."""

import contextlib
import json
import random
import threading

import numpy as np
import processes
from safetensors_file import safetensors

import psd

# Cut within tensors and between them.
MODEL = psd.Model("several", {"embed": (301, 7), "scale": (), "fc1.weight": (64, 33), "fc1.bias": (64,), "fc2.weight": (10, 64), "fc2.bias": (10,)})
SYNC = {"policy": "sync", "policy__round_timeout_ms": 600_000, "optimizer": '{"type":"sgd","lr":1.0}'}


class Trainer:
    """A trainer on a thread of its own, which makes rounds until it is stopped."""

    def __init__(self, test, rank, world_size, rounds=None, local_steps=0):
        self.test, self.rank, self.world_size, self.rounds, self.local_steps = test, rank, world_size, rounds, local_steps
        self.stopping, self.failure = threading.Event(), None
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        try:
            client = psd.Client(self.test.addresses[0], retry_timeout=processes.WAIT_S, on_event=lambda *_: None)
            client.join(MODEL, MODEL.zeros(), self.rank, self.world_size)
            values, gradient, made = MODEL.zeros(), np.full(MODEL.size, -1, np.float32), 0
            while not self.stopping.is_set() and made != self.rounds:
                client.pull(values)
                made += client.push(gradient, 1, local_steps=self.local_steps).outcome == "applied"
            client.leave()
            client.close()
        except BaseException as failure:  # shown by end()
            self.failure = failure

    def end(self):
        self.stopping.set()
        self.thread.join(processes.WAIT_S)
        self.test.assertFalse(self.thread.is_alive(), "the trainer does not end")
        if self.failure:
            raise self.failure


class SeveralVersions(processes.ProcessTest):
    def several(self, count=2, name="a", **settings):
        self.addresses = [self.unix_address(f"{name}{i}.sock") for i in range(count)]
        self.settings = settings
        return [self.one(i) for i in range(count)]

    def one(self, index):
        settings = {**SYNC, "publish": {"every_updates": 1}, "durability__type": "log", **self.settings}
        if settings["durability__type"] != "none":
            settings["durability__path"] = str(self.folder / f"saved-{index}")
        return self.daemon(listen=(self.addresses[index],), daemons=self.addresses, index=index, **settings)

    def follower(self, **options):
        follower = psd.Follower(self.addresses[-1], on_event=lambda *_: None, retry_timeout=processes.WAIT_S, **options)
        self.addCleanup(follower.close)
        return follower

    def trainers(self, count, rounds=None, **options):
        return [Trainer(self, rank, count, rounds, **options) for rank in range(count)]

    def trained(self, count, rounds, **options):
        """Waits for the ends of trainers."""
        trainers = self.trainers(count, rounds, **options)
        for trainer in trainers:
            trainer.thread.join(processes.WAIT_S)
        for trainer in trainers:
            trainer.end()

    def until_written(self, daemons):
        """Waits for the versions of the last rounds, which trainers do not wait for."""
        newest = {daemon.until_status("its newest version", lambda status: status["publish"]["newest"] == status["shards"][0]["version"])["publish"]["newest"]
                  for daemon in daemons}
        self.assertEqual(len(newest), 1)

    def assert_moment(self, number, tensors):
        """All elements are of that round."""
        self.assertEqual({name: tensor.shape for name, tensor in tensors.items()}, MODEL.shapes)
        self.assertEqual({float(value) for tensor in tensors.values() for value in np.unique(tensor)}, {float(number)})

    def test_one_moment_whichever_daemon_is_killed(self):
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        chance = random.Random(seed)
        daemons = self.several(policy__start_trainers=2)
        trainers, follower, seen = self.trainers(2), self.follower(), []
        for _ in range(5):
            for _ in range(chance.randrange(1, 6)):
                seen.append(follower.wait(timeout=processes.WAIT_S))
                self.assert_moment(seen[-1], follower.tensors())
            victim = chance.randrange(2)
            daemons[victim].kill()
            daemons[victim] = self.one(victim)
        # A killed daemon has not published its last rounds: the trainers end after a later one.
        made = max(daemon.status()["shards"][0]["version"] for daemon in daemons)
        seen.append(follower.wait(at_least=made + 1, timeout=processes.WAIT_S))
        self.assert_moment(seen[-1], follower.tensors())
        for trainer in trainers:
            trainer.end()
        self.assertEqual(seen, sorted(set(seen)))
        self.until_written(daemons)
        for version in follower.versions():
            follower.fetch(version.number)
            self.assert_moment(version.number, follower.tensors())
        self.assertEqual(follower.info.moment, "round")

    def test_trainers_that_come_and_go(self):
        # One that joins may take part in another round at each daemon, and stays a round apart there. Every round has rank 0.
        self.several(3)
        first, follower = Trainer(self, 0, 3), self.follower()
        for _ in range(4):
            others = [Trainer(self, rank, 3) for rank in (1, 2)]
            for _ in range(3):
                self.assert_moment(follower.wait(timeout=processes.WAIT_S), follower.tensors())
            follower.wait(at_least=follower.version + 10, timeout=processes.WAIT_S)
            self.assert_moment(follower.version, follower.tensors())
            for other in others:
                other.end()
        first.end()

    def test_every_nth_round_of_three_daemons(self):
        daemons = self.several(3, publish={"every_updates": 7, "keep": 10, "as": "bf16"}, durability__type="none")
        self.trained(1, 30)
        follower = self.follower()
        self.assertEqual(follower.wait(at_least=28, timeout=processes.WAIT_S), 28)
        self.assertEqual([version.number for version in follower.versions()], [7, 14, 21, 28])
        for number in (7, 28, 14):
            follower.fetch(number)
            bits = {int(value) for tensor in follower.tensors().values() for value in np.unique(tensor.view(np.uint16))}
            self.assertEqual(bits, {int(np.float32(number).view(np.uint32)) >> 16})
        for daemon in daemons:
            published = daemon.status()["publish"]
            self.assertEqual(published["failures"], 0)
            self.assertEqual(published["newest"], 28)

    def test_a_trainer_that_dies_within_a_push(self):
        # One daemon has its last gradient and the other has not: from then on they have made different numbers of
        # rounds, and a version still has what a trainer would pull between two of them.
        daemons = self.several(membership__grace_ms=1)
        client = psd.Client(self.addresses[0])
        client.join(MODEL, MODEL.zeros(), 0, 1)
        values, gradient = MODEL.zeros(), np.full(MODEL.size, -1, np.float32)
        for _ in range(3):
            client.pull(values)
            client.push(gradient, 1)
        client.pull(values)
        push = client.partial_push(gradient, 1)
        push.ready(0, MODEL.size * 6 // 10 // 16 * 16)
        daemons[0].until_status("it has applied the round", lambda status: {shard["version"] for shard in status["shards"]} == {4})
        client.close()
        del push
        self.assertEqual({shard["version"] for shard in daemons[1].status()["shards"]}, {3})
        self.trained(1, 5)
        follower = self.follower()
        follower.wait(at_least=9, timeout=processes.WAIT_S)
        numbers = [version.number for version in follower.versions()]
        self.assertEqual(numbers[-2:], [8, 9])
        for number in numbers:
            follower.fetch(number)
            elements = np.concatenate([tensor.ravel() for tensor in follower.tensors().values()])
            mine = np.unique(elements[:len(elements) // 3]), np.unique(elements[-len(elements) // 3:])
            self.assertEqual([list(part) for part in mine], [[number], [number if number < 4 else number - 1]])
            self.assertEqual(np.count_nonzero(np.diff(elements)), number >= 4)  # one boundary between the daemons
        self.assertEqual(daemons[1].status()["publish"]["newest"], 9)

    def test_a_daemon_that_loses_rounds(self):
        # It returns to its last checkpoint, the other does not. No version has its earlier rounds beside later ones.
        daemons = self.several(durability__type="checkpoint", publish={"every_updates": 1, "keep": 100})
        trainer, follower = Trainer(self, 0, 1), self.follower()
        follower.wait(at_least=10, timeout=processes.WAIT_S)
        self.psd("checkpoint", "--server", self.addresses[0])
        follower.wait(at_least=follower.version + 10, timeout=processes.WAIT_S)
        before = [version.number for version in follower.versions()]
        daemons[1].kill()
        daemons[1] = self.one(1)
        seen = set()
        for _ in range(5):
            with contextlib.suppress(psd.ModelMismatch):  # once at most: a round that was published is made again
                seen.add(follower.wait(timeout=processes.WAIT_S))
        trainer.end()
        offsets = {}
        for version in follower.versions():
            follower.fetch(version.number)
            elements = np.concatenate([tensor.ravel() for tensor in follower.tensors().values()])
            self.assertEqual(elements[0], version.number)
            self.assertLessEqual(np.count_nonzero(np.diff(elements)), 1)
            offsets[version.number] = version.number - elements[-1]
        by_number = [offsets[number] for number in sorted(offsets)]
        self.assertEqual({offsets[number] for number in before if number in offsets}, {0})
        self.assertEqual(by_number, sorted(by_number))
        self.assertEqual(len(set(by_number)), 2)  # before and after the rounds that it has lost
        self.assertGreaterEqual(len(seen), 4)

    def test_versions_of_an_earlier_history(self):
        # They are listed, and read like others, once a reader knows that another history has begun.
        daemons = self.several(publish={"every_updates": 1, "keep": 100})
        client = psd.Client(self.addresses[0], retry_timeout=processes.WAIT_S, on_event=lambda *_: None)
        self.addCleanup(client.close)
        client.join(MODEL, MODEL.zeros(), 0, 1)
        values, gradient = MODEL.zeros(), np.full(MODEL.size, -1, np.float32)

        def train(rounds):
            while rounds > 0:
                client.pull(values)
                rounds -= client.push(gradient, 1).outcome == "applied"
            self.until_written(daemons)

        train(5)
        follower = self.follower()
        self.assertEqual(follower.wait(at_least=5, timeout=processes.WAIT_S), 5)
        daemons[1].kill()
        (self.folder / "saved-1" / "versions" / "version-0000000005.safetensors").unlink()
        daemons[1] = self.one(1)
        train(3)
        with self.assertRaises(psd.ModelMismatch):
            follower.wait(at_least=8, timeout=processes.WAIT_S)
        self.assertEqual(follower.wait(at_least=8, timeout=processes.WAIT_S), 8)
        for number in (3, 7, 4):
            follower.fetch(number)
            self.assert_moment(number, follower.tensors())
        train(1)
        self.assertEqual(follower.wait(at_least=9, timeout=processes.WAIT_S), 9)
        self.assert_moment(9, follower.tensors())

    def test_daemons_that_publish_other_dtypes(self):
        # The parts of a tensor that is cut between them make no file, however often they are read.
        self.addresses = [self.unix_address(f"{index}.sock") for index in range(2)]
        for index, dtype in enumerate(("f32", "bf16")):
            self.settings = {"durability__type": "none", "publish": {"every_updates": 1, "as": dtype}}
            self.one(index)
        self.trained(1, 5)
        wanted = "give all the same publish.as"
        with self.assertRaisesRegex(psd.InvalidArgument, wanted):
            self.follower().wait(timeout=processes.WAIT_S)
        server = ("--server", self.addresses[0])
        self.assertIn(wanted, self.refused("follow", *server, "--into", "followed"))
        self.assertIn(wanted, self.refused("export", *server, "--published", 0, "--to", "x"))

    def test_commands(self):
        daemons = self.several(policy__start_trainers=2, publish={"every_updates": 5, "keep": 4})
        self.trained(2, 12)
        follower = self.follower()
        follower.wait(at_least=10, timeout=processes.WAIT_S)
        server = ("--server", self.addresses[1])
        self.assertIn("round", self.psd("versions", *server))
        listed = json.loads(self.psd("versions", "--json", *server))
        self.assertEqual([version["number"] for version in listed["versions"]], [5, 10])
        self.assertEqual(len(listed["daemons"]), 2)
        for number, wanted in ((5, 5), (0, 10)):
            self.psd("export", *server, "--published", number, "--to", "model.safetensors")
            file = safetensors(self.folder / "model.safetensors")
            self.assertEqual(list(file), list(MODEL.shapes))
            self.assertEqual({name: tuple(shape) for name, (shape, _) in file.items()}, MODEL.shapes)
            self.assertEqual({value for _, values in file.values() for value in values}, {wanted})
        self.assertIn("version 10: ", self.psd("follow", *server, "--into", "followed", "--once"))
        self.assertEqual({value for _, values in safetensors(self.folder / "followed" / "model.safetensors").values() for value in values}, {10})
        self.assertIn("not all daemons have version 7 of one moment", self.refused("export", *server, "--published", 7, "--to", "x"))
        with self.assertRaisesRegex(psd.DeadlineExceeded, "version 1000 was not published by all daemons"):
            follower.wait(at_least=1000, timeout=0.1)
        with self.assertRaisesRegex(psd.NotReady, "not all daemons have version 7"):
            follower.fetch(7)
        self.assertIn("every round whose number is a multiple of publish.every_updates", self.refused("publish", *server))
        self.assertIn("several daemons serve the model", self.refused("rollback", 5, *server))
        with follower.pin():
            leases = [daemon.status()["publish"]["leases"] for daemon in daemons]
            self.assertEqual([[lease["version"] for lease in each] for each in leases], [[10], [10]])
        self.assertEqual([daemon.status()["publish"]["leases"] for daemon in daemons], [[], []])
        self.assertEqual(self.psd("stop", *server).count("has stopped"), 2)

    def test_other_rounds(self):
        groups = [{"match": ["embed"], "policy": {"type": "sync", "round_timeout_ms": 600_000}, "optimizer": {"type": "sgd", "lr": 1.0}}]
        diloco = {"policy": "diloco", "policy__period": 1, "policy__inner": {"type": "sgd", "lr": 1.0}}
        for name, settings, local_steps in (("groups", {"groups": groups}, 0), ("diloco", diloco, 1)):
            with self.subTest(name):
                daemons = self.several(2, name, policy__start_trainers=2, publish={"every_updates": 3}, durability__type="none", **settings)
                self.trained(2, 12, local_steps=local_steps)
                follower = self.follower()
                follower.wait(at_least=12, timeout=processes.WAIT_S)
                numbers = [version.number for version in follower.versions()]
                self.assertEqual(numbers, [3, 6, 9, 12])
                for number in numbers:
                    follower.fetch(number)
                    self.assert_moment(number, follower.tensors())
                self.assertEqual([daemon.status()["publish"]["failures"] for daemon in daemons], [0, 0])

    def steps(self, rounds, start=None):
        """Rounds of one trainer whose gradients follow from the parameters; what it pulls before each and at the end."""
        client = psd.Client(self.addresses[1])
        self.addCleanup(client.close)
        client.join(MODEL, MODEL.zeros() if start is None else start, 0, 1)
        pulled = []
        for _ in range(rounds):
            values = MODEL.zeros()
            client.pull(values)
            pulled.append(values)
            client.push(0.1 * values - np.arange(MODEL.size, dtype=np.float32) % 7, 1)
        values = MODEL.zeros()
        client.pull(values)
        client.leave()
        return [*pulled, values]

    def test_back_to_a_version(self):
        settings = {"optimizer": '{"type":"adam","lr":0.1}', "shards": 3, "publish": {"every_updates": 4, "keep": 100}}
        daemons = self.several(2, **settings)
        before = self.steps(21)
        self.follower().wait(at_least=20, timeout=processes.WAIT_S)
        for daemon in daemons:
            daemon.kill()
        folders = [self.folder / f"saved-{index}" for index in (1, 0)]
        said = self.refused("repartition", *folders, "--daemons", 2, "--published", 13, "--to", "restored")
        self.assertIn("has no version 13; its versions: ", said)
        for count, version in ((2, 12), (3, 8)):
            with self.subTest(daemons=count):
                to = self.folder / f"restored-{count}"
                self.psd("repartition", *folders, "--daemons", count, "--published", version, "--to", to)
                self.addresses = [self.unix_address(f"r{count}-{index}.sock") for index in range(count)]
                for index in range(count):
                    self.daemon(listen=(self.addresses[index],), daemons=self.addresses, index=index, **{**SYNC, **settings},
                                durability__type="log", durability__path=str(to / f"partition-{index}"))
                again = self.steps(21 - version, before[0])
                for mine, other in zip(again, before[version:], strict=True):
                    np.testing.assert_array_equal(mine.view(np.uint32), other.view(np.uint32))
                follower = self.follower()
                self.assertEqual(follower.wait(at_least=20, timeout=processes.WAIT_S), 20)  # rounds keep their numbers
                self.psd("stop", "--server", self.addresses[0])

    def test_a_daemon_that_is_away_delays_versions_alone(self):
        daemons = self.several()
        trainer, follower = Trainer(self, 0, 1), self.follower()
        number = follower.wait(timeout=processes.WAIT_S)
        daemons[1].kill()
        daemons[1] = self.one(1)
        self.assertGreater(follower.wait(at_least=number + 5, timeout=processes.WAIT_S), number)
        self.assert_moment(follower.version, follower.tensors())
        trainer.end()


if __name__ == "__main__":
    processes.main()
