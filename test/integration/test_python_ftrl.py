"""FTRL-Proximal at a daemon: the weights of tensors and rows equal a loop in numpy, follow z and n when pushes race, and
survive kills, incremental checkpoints and a take-over, bit for bit. What would change the rate is refused."""

import json
import threading
import unittest

import etcd
import numpy as np
import processes
import torch

import psd
import psd.torch
from psd import _psd

SIZE, DIM, IDS = 40, 3, 12
ALPHA, BETA, L1, L2, GROUP = 0.2, 0.5, 0.3, 1.5, 0.8
PLAIN = {"type": "ftrl", "lr": ALPHA, "beta": BETA, "l1": L1, "l2": L2}
GROUPED = {**PLAIN, "type": "group_ftrl", "group_l1": GROUP}
GROUPS = [{"match": "item", "optimizer": GROUPED}]
MODEL = psd.Model("sparse", {"w": (SIZE,)}, [psd.Table("item", DIM, "zero")])
TENSORS = psd.Model("linear", {"w": (SIZE,)})


def weights_of(z, n, group=0.0):
    """By the formula of the paper, in the type of z. The last axis is a row."""
    number = z.dtype.type
    shrunk = np.where(z > L1, number(L1) - z, np.where(z < -number(L1), -number(L1) - z, number(0)))
    if group:
        norm = np.sqrt((shrunk ** 2).sum(axis=-1, keepdims=True))
        limit = group * np.sqrt(z.shape[-1])
        shrunk = np.where(norm > limit, (1 - limit / np.maximum(norm, 1e-30)) * shrunk, 0)
    return shrunk / (number(BETA / ALPHA + L2) + number(1 / ALPHA) * np.sqrt(n))


class Loop:
    """FTRL in double."""

    def __init__(self, shape, group=0.0):
        self.z, self.n, self.group = np.zeros(shape), np.zeros(shape), group

    def weights(self):
        return weights_of(self.z, self.n, self.group)

    def step(self, gradient, where=...):
        gradient, weights = gradient.astype(np.float64), self.weights()[where]
        total = self.n[where] + gradient ** 2
        self.z[where] += gradient - (np.sqrt(total) - np.sqrt(self.n[where])) / ALPHA * weights
        self.n[where] = total


class Trainer:
    """A client that pushes made-up gradients of the tensor and of some rows."""

    def __init__(self, test, address, rank=0, world_size=1, model=MODEL, initial=None, **options):
        self.client, self.random = psd.Client(address, retry_timeout=processes.WAIT_S, **options), np.random.default_rng(rank)
        test.addCleanup(self.client.close)
        self.client.join(model, model.zeros() if initial is None else initial, rank, world_size)
        self.values, self.tables = model.zeros(), bool(model.tables)
        self.rows = self.client.rows() if self.tables else None

    def pull(self, ids):
        """The tensor's values, and those of the rows."""
        if self.tables:
            self.rows.make([("item", np.array(ids, np.uint64))])
        self.client.pull(self.values, self.rows)
        return self.values[:SIZE].copy(), self.rows.values("item")[self.rows.places(0)].copy() if self.tables else None

    def step(self):
        """The gradient of the tensor, the ids of the rows and their gradients."""
        ids = np.unique(self.random.integers(IDS, size=5))
        self.pull(ids)
        gradient = np.zeros_like(self.values)
        gradient[:SIZE] = self.random.normal(0.1, 1, SIZE) * (self.random.random(SIZE) < 0.5)
        of_rows = self.random.normal(0.1, 0.5, (len(ids), DIM)).astype(np.float32)
        if self.tables:
            self.rows.gradients("item")[self.rows.places(0)] = of_rows
        self.client.push(gradient, rows=self.rows)
        return gradient[:SIZE], ids, of_rows


class PythonFtrl(processes.ProcessTest):
    def open_daemon(self, name="d", **settings):
        return self.daemon(listen=(self.unix_address(f"{name}.sock"),), **{"policy": "locked", "optimizer": PLAIN, **settings})

    def logged(self, name="d", **settings):
        """With a log and checkpoints of which three of four have only the rows that changed."""
        durability = {"type": "log", "path": str(self.folder / name), "every_seconds": 0, "full_every": 4}
        return self.open_daemon(name, groups=GROUPS, durability=durability, **settings)

    def assert_near(self, values, expected):
        np.testing.assert_array_equal(values == 0, expected == 0)
        np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-7)

    def assert_same(self, one, other):
        for mine, theirs in zip(one.pull(range(IDS)), other.pull(range(IDS))):
            np.testing.assert_array_equal(mine.view(np.uint32), theirs.view(np.uint32))

    def test_weights_equal_a_loop_in_numpy(self):
        trainer = Trainer(self, self.open_daemon(groups=GROUPS).address)
        tensor, table = Loop(SIZE), Loop((IDS, DIM), GROUP)
        for _ in range(15):
            gradient, ids, of_rows = trainer.step()
            tensor.step(gradient)
            table.step(of_rows, ids)
            values, rows = trainer.pull(range(IDS))
            self.assert_near(values, tensor.weights())
            self.assert_near(rows, table.weights())
        self.assertTrue((values == 0).any() and (values != 0).any())
        self.assertTrue(0 < (rows == 0).all(axis=1).sum() < IDS, "whole rows are zero, and others are not")

    def test_initial_values_of_a_tensor_are_those_of_a_state(self):
        initial = TENSORS.zeros()
        initial[:SIZE] = np.random.default_rng(1).normal(0, 1, SIZE)
        initial[:5] = 0
        trainer = Trainer(self, self.open_daemon().address, model=TENSORS, initial=initial)
        values, _ = trainer.pull([])
        np.testing.assert_allclose(values, initial[:SIZE], rtol=1e-5)
        np.testing.assert_array_equal(values[:5], 0)
        self.assert_follow(trainer)
        before = values
        gradient = TENSORS.zeros()
        gradient[:SIZE] = 1e-3
        trainer.client.push(gradient)
        values, _ = trainer.pull([])
        self.assertLess(np.abs(values - before).max(), 1e-3)
        self.assert_follow(trainer)

    def assert_follow(self, trainer):
        """Each weight is that of its z and n."""
        state = trainer.client.fetch_state()
        np.testing.assert_array_equal(state.values, weights_of(state.state["z"], state.state["n"]))
        return state

    def test_a_restored_state_decides_the_weights(self):
        trainer = Trainer(self, self.open_daemon().address, model=TENSORS)
        state = {"z": TENSORS.zeros(), "n": TENSORS.zeros()}
        state["z"][:SIZE], state["n"][:SIZE] = np.linspace(-2, 2, SIZE), np.linspace(0, 9, SIZE)
        trainer.client.restore_state(np.full_like(state["z"], 7), state, [3] * len(trainer.client.info.shard_ranges))
        restored = self.assert_follow(trainer)
        np.testing.assert_array_equal(restored.state["z"], state["z"])
        self.assertTrue((restored.values != 7).all())

    def test_a_module_trains_with_the_daemons_ftrl(self):
        torch.manual_seed(3)
        model = torch.nn.Linear(8, 1)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer = psd.torch.Optimizer(model, self.open_daemon(optimizer={**PLAIN, "l1": 0.01}).address, rank=0, world_size=1)
        self.addCleanup(optimizer.client.close)
        for old, new in zip(before, model.parameters()):
            torch.testing.assert_close(new.detach(), old, rtol=1e-5, atol=1e-6)
        inputs = torch.randn(64, 8)
        wanted = inputs[:, :1] - 2 * inputs[:, 1:2]
        losses = []
        for _ in range(60):
            optimizer.zero_grad()
            losses.append(torch.nn.functional.mse_loss(model(inputs), wanted))
            losses[-1].backward()
            optimizer.step()
        self.assertLess(losses[-1], losses[0] / 10)
        self.assertEqual({"z", "n"} - set(optimizer.state_dict(full=True)["state"][0]), set())

    def test_weights_follow_their_state_after_concurrent_pushes(self):
        # Their steps seldom overlap; optimizer_races_test makes them.
        for durability in ({"type": "none"}, {"type": "log", "path": str(self.folder / "saved")}):  # a log gathers pushes first
            with self.subTest(durability):
                daemon = self.open_daemon(durability["type"], policy="hogwild", threads=3, shards=1, durability=durability)
                trainers = [Trainer(self, daemon.address, rank, 3, TENSORS) for rank in range(3)]
                for _ in range(5):
                    threads = [threading.Thread(target=lambda trainer=trainer: [trainer.step() for _ in range(100)]) for trainer in trainers]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
                    state = self.assert_follow(trainers[0])
                self.assertEqual(max(state.steps), 1500)

    def test_a_killed_daemon_has_the_same_bits(self):
        steady, daemon = Trainer(self, self.open_daemon("steady", groups=GROUPS).address), self.logged()
        trainer = Trainer(self, daemon.address)
        for kill in range(3):
            for _ in range(7):
                steady.step()
                trainer.step()
            if kill != 1:
                self.psd("checkpoint", "--server", daemon.address)
            daemon.kill()
            daemon = self.logged()
            self.assert_same(trainer, steady)
        # What a checkpoint alone restores, with rows from several ones.
        self.assert_stops(daemon)
        daemon = self.logged()
        self.assert_same(trainer, steady)
        steady.step()
        trainer.step()
        self.assert_same(trainer, steady)

    @unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
    def test_a_standby_has_the_same_bits(self):
        store = etcd.Etcd(self)
        settings = {"engine": {"endpoints": store.endpoints, "prefix": "/psd/test"}, "replication": {"silence_ms": 1000, "alone_ms": 20_000}}
        steady, primary = Trainer(self, self.open_daemon("steady", groups=GROUPS).address), self.logged("a", **settings)
        primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        trainer = Trainer(self, [primary.address, self.unix_address("b.sock")])
        for _ in range(5):
            steady.step()
            trainer.step()
        standby = self.logged("b", **settings)
        primary.until_in_sync()
        for _ in range(5):
            steady.step()
            trainer.step()
        primary.kill()
        self.assert_same(trainer, steady)
        self.assertEqual(standby.status()["replica_set"]["role"], "primary")
        steady.step()
        trainer.step()
        self.assert_same(trainer, steady)

    def test_penalties_may_change_at_a_restart_and_the_rate_may_not(self):
        durability = {"type": "checkpoint", "path": str(self.folder / "saved")}
        daemon = self.open_daemon(durability=durability)
        trainer = Trainer(self, daemon.address, model=TENSORS)
        for _ in range(10):
            trainer.step()
        state = self.assert_follow(trainer)
        self.assert_stops(daemon)
        faster = self.start_psd("--listen", self.unix_address("e.sock"), "--set", f"durability={json.dumps(durability)}", "--set", "policy.type=locked",
                                "--set", f"optimizer={json.dumps({**PLAIN, 'lr': 0.4})}")
        self.assert_fails(faster, "the saved state of optimizer 'ftrl' holds for lr 0.2, and the configuration has 0.4: set lr to 0.2")
        self.open_daemon(durability=durability, optimizer={**PLAIN, "l1": L1 + 1})
        values, _ = trainer.pull([])
        z = state.state["z"][:SIZE]
        np.testing.assert_array_equal(values == 0, np.abs(z) <= np.float32(L1 + 1))
        self.assertGreater((values == 0).sum(), (state.values[:SIZE] == 0).sum())

    def test_what_changes_the_rate_is_refused(self):
        for settings, words in (({"optimizer": {**PLAIN, "schedule": {"warmup_updates": 5}}}, "optimizer.schedule: cannot be combined with ftrl"),
                                ({"optimizer": PLAIN, "policy": {"type": "locked", "staleness": {"rate": "inverse"}}},
                                 "policy.staleness.rate: cannot be combined with ftrl")):
            self.assertIn(words, self.refused("check", "--config", self.write("config.json", json.dumps(settings))))
        daemon = self.open_daemon(optimizer=None)
        text = json.dumps(PLAIN)
        trainer = Trainer(self, daemon.address, 0, 2, TENSORS, optimizer=text)
        self.assertIn("ftrl lr=0.2", daemon.status()["optimizer"])
        self.assertTrue(trainer.client.info.takes_hyperparameters)
        for numbers, words in (([0.2, BETA, L1, L2, 0], None), ([0.1, BETA, L1, L2, 0], "a push's lr must be 0.2"),
                               ([0.2, BETA, 1, L2, 0], "a push's l1 must be 0.3")):
            carried = _psd.Hyperparameters([numbers], [(len(trainer.values), 0)], [])
            if words is None:
                trainer.client.push(trainer.values, hyperparameters=carried)
            else:
                with self.assertRaisesRegex(psd.Error, words):
                    trainer.client.push(trainer.values, hyperparameters=carried)
        with self.assertRaisesRegex(psd.InvalidArgument, "lr 0.5 there, 0.2 here"):
            Trainer(self, daemon.address, 1, 2, TENSORS, optimizer=json.dumps({**PLAIN, "lr": 0.5}))

    def test_a_table_with_other_initial_rows_is_refused(self):
        model = psd.Model("sparse", {"w": (SIZE,)}, [psd.Table("item", DIM, "uniform", 0.1, 1)])
        with self.assertRaisesRegex(psd.Error, "groups.0..optimizer: rows begin at 0 under group_ftrl.*'item'"):
            Trainer(self, self.open_daemon(groups=GROUPS).address, model=model)


if __name__ == "__main__":
    processes.main()
