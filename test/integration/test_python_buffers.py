"""A model's buffers, those of the trainer with rank 0: served, saved, exported and taken by other trainers."""

import json
import logging
import threading
import unittest

import etcd
import ml_dtypes
import numpy as np
import processes
import torch
from safetensors_file import torch_tensors
from torch import nn

import psd
import psd.torch

PLAIN = psd.Model("plain", {"w": (40,), "b": (3,)})
ARRAYS = {"mean": np.arange(3, dtype=np.float32), "count": np.int64(7), "mask": np.array([[True, False]]), "scale": np.float64(0.1),
          "half": np.arange(5).astype(ml_dtypes.bfloat16), "none": np.zeros((0, 4), np.uint8)}


class Network(nn.Module):
    """With BatchNorm, a buffer of each other kind, and one that is not persistent."""

    def __init__(self, seed=1):
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))
        self.register_buffer("mask", torch.rand(8) > 0.3)
        self.register_buffer("shift", torch.randn(8).bfloat16())
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))
        self.register_buffer("scratch", torch.full((2,), float(seed)), persistent=False)

    def forward(self, x):
        if self.training:
            self.seen += len(x)
        return self.body(x * self.mask + self.shift.float())


class PythonBuffers(processes.ProcessTest):
    def optimizer(self, module, daemon, rank, kind=psd.torch.Optimizer, **options):
        optimizer = kind(module, daemon if isinstance(daemon, str) else daemon.address, rank=rank, world_size=2, buffers="rank0", **options)
        self.addCleanup(optimizer.client.close)
        return optimizer

    def train(self, module, optimizer, steps=8):
        generator = torch.Generator().manual_seed(optimizer.rank)
        module.train()
        for _ in range(steps):
            x = torch.randn(16, 8, generator=generator) + optimizer.rank
            optimizer.zero_grad()
            nn.functional.mse_loss(module(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()

    def plain(self, daemon, rank=0, world_size=1, model=PLAIN):
        client = psd.Client(daemon if isinstance(daemon, str) else daemon.address)
        self.addCleanup(client.close)
        client.join(model, model.zeros(), rank, world_size)
        return client

    def reader(self, daemon, **options):
        client = psd.Client(daemon if isinstance(daemon, str) else daemon.address, **options)
        self.addCleanup(client.close)
        client.observe()
        return client

    def assert_buffers(self, client, expected):
        found = client.buffers()
        self.assertEqual({*found}, {*expected})
        for name, value in expected.items():
            self.assertEqual((found[name].dtype, found[name].shape), (np.asarray(value).dtype, np.shape(value)), name)
            self.assertEqual(found[name].tobytes(), np.asarray(value).tobytes(), name)

    def assert_same(self, one, other):
        for (name, mine), (_, its) in zip(one.state_dict().items(), other.state_dict().items()):
            self.assertTrue(torch.equal(mine, its), name)

    def test_an_exported_model_is_that_of_rank_0(self):
        daemon = self.daemon(policy="locked", durability={"type": "log", "path": str(self.folder / "saved")})
        modules = [Network(1), Network(2)]
        optimizers = [self.optimizer(module, daemon, rank) for rank, module in enumerate(modules)]
        self.assert_same(modules[0], modules[1])  # before the first step
        threads = [threading.Thread(target=self.train, args=pair) for pair in zip(modules, optimizers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertNotEqual(modules[0].body[1].running_mean.tolist(), modules[1].body[1].running_mean.tolist())
        for optimizer in reversed(optimizers):  # rank 0 pulls the newest parameters
            optimizer._pull()
            optimizer.close()
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(5))
        expected = modules[0].eval()(x)
        status = daemon.status()["model"]
        self.assertEqual((status["buffers"], status["buffer_bytes"]), (6, 6 * 4 * 2 + 8 + 8 + 16 + 8))
        self.psd("export", "--server", daemon.address, "--to", self.folder / "live")
        daemon.kill()  # what was answered is in the log
        daemon = self.daemon(policy="locked", durability={"type": "log", "path": str(self.folder / "saved")})
        self.psd("export", "--server", daemon.address, "--to", self.folder / "restarted")
        self.psd("checkpoint", "--server", daemon.address)
        self.assert_stops(daemon)
        self.psd("export", self.folder / "saved", "--to", self.folder / "checkpoint")
        self.psd("replay", self.folder / "saved", "--to", self.folder / "replayed")
        for name in ("live", "restarted", "checkpoint", "replayed"):
            with self.subTest(name):
                fresh = Network(3).eval()
                fresh.load_state_dict(torch_tensors(self.folder / name))
                self.assertTrue(torch.equal(fresh(x), expected))
        inspected = json.loads(self.psd("inspect", "--json", self.folder / "checkpoint"))
        self.assertEqual({buffer["name"] for buffer in inspected["buffers"]}, {*modules[0].state_dict()} - {*optimizers[0].model.shapes})

        started = self.daemon(policy="locked", model={"file": str(self.folder / "checkpoint")})
        other = Network(4)
        self.optimizer(other, started, 1)
        self.assertTrue(torch.equal(other.eval()(x), expected))

    def test_trainers_that_join_take_the_buffers_of_rank_0(self):
        daemon = self.daemon(policy="locked")
        first, late = Network(1), Network(2)
        optimizer = self.optimizer(first, daemon, 0)
        self.train(first, optimizer)
        optimizer.push_buffers()
        with self.assertLogs("psd", logging.INFO) as logs:
            other = self.optimizer(late, daemon, 1)
        self.assertIn("the daemon's buffers, those of rank 0, replace those of the module", "".join(logs.output))
        self.assert_same(first, late)
        self.assertEqual(late.scratch.tolist(), [2, 2])
        self.train(late, other)
        other.pull_buffers()
        self.assertTrue(torch.equal(first.body[1].running_mean, late.body[1].running_mean))
        with self.assertRaisesRegex(psd.InvalidArgument, "push_buffers.. is for the trainer with rank 0; this is rank 1"):
            other.push_buffers()
        optimizer.state_dict()  # a checkpoint of the program: sends what there is
        self.train(first, optimizer, 1)
        optimizer.close()
        again = Network(3)
        self.optimizer(again, daemon, 0)  # rank 0 comes back
        for name, value in first.named_buffers():
            if name != "scratch":
                self.assertTrue(torch.equal(value, dict(again.named_buffers())[name]), name)

    def test_a_trainer_that_is_there_before_rank_0_takes_them_in_its_first_step(self):
        daemon = self.daemon(policy="locked")
        early, first = Network(2), Network(1)
        other = self.optimizer(early, daemon, 1)
        self.assertFalse(torch.equal(early.shift, first.shift))
        self.optimizer(first, daemon, 0)
        self.train(early, other, 1)
        self.assertTrue(torch.equal(early.shift, first.shift))
        self.assertEqual(float(early.seen), 0)

    def test_learners_serve_buffers_too(self):
        daemon = self.daemon(policy="diloco", policy__period=2, optimizer='{"type":"sgd","lr":1.0}')
        module = Network(1)
        inner = torch.optim.SGD(module.parameters(), 0.05)
        with psd.torch.DiLoCo(module, inner, daemon.address, rank=0, world_size=1, buffers="rank0") as learner:
            for _ in range(5):
                inner.zero_grad()
                module(torch.randn(16, 8)).square().mean().backward()
                inner.step()
            learner.push_buffers()
            self.assertEqual(self.reader(daemon).buffers()["seen"].item(), 80)
            module(torch.randn(16, 8))
        other = Network(2)
        taken = psd.torch.DiLoCo(other, torch.optim.SGD(other.parameters(), 0.05), daemon.address, rank=0, world_size=1, buffers="rank0")
        self.addCleanup(taken.client.close)
        self.assert_same(module, other)

    def test_values_of_all_kinds_survive_and_are_replaced_at_once(self):
        saved = {"type": "checkpoint", "path": str(self.folder / "saved"), "every_seconds": 0}
        daemon = self.daemon(policy="locked", durability=saved)
        client = self.plain(daemon)
        self.assertEqual(client.buffers(), {})
        client.set_buffers({"old": np.zeros(1 << 20)})  # in several slices
        self.assert_buffers(client, {"old": np.zeros(1 << 20)})
        client.set_buffers(ARRAYS)
        reader = self.reader(daemon)
        self.assert_buffers(reader, ARRAYS)
        client.checkpoint()
        client.set_buffers({"lost": np.zeros(1)})
        daemon.kill()
        client.close()
        daemon = self.daemon(policy="locked", durability=saved)
        self.assert_buffers(self.reader(daemon), ARRAYS)
        client = self.plain(daemon)
        client.set_buffers({"last": np.ones(2)})
        client.leave()
        self.assert_stops(daemon)  # saves them, without any update
        self.assert_buffers(self.reader(self.daemon(policy="locked", durability=saved)), {"last": np.ones(2)})

    def test_buffers_are_refused_with_the_reason(self):
        model = psd.Model("tables", {"w": (4,)}, [psd.Table("rows", 2)])
        daemon = self.daemon(policy="locked", limits__buffer_bytes=1000)
        first, second = self.plain(daemon, 0, 2, model), self.plain(daemon, 1, 2, model)
        first.set_buffers({"kept": np.ones(2)})
        for client, buffers, kind, why in (
                (second, {"a": np.ones(1)}, psd.InvalidArgument, "those of the trainer with rank 0, and this is rank 1"),
                (first, {"w": np.ones(4)}, psd.InvalidArgument, "buffer 'w' has the name of a tensor of the model"),
                (first, {"rows": np.ones(4)}, psd.InvalidArgument, "buffer 'rows' has the name of a table of the model"),
                (first, {"a b": np.ones(1)}, psd.InvalidArgument, "buffer 'a b' has no name that a tensor may have"),
                (first, {"big": np.ones(1000)}, psd.Overloaded, "limits.buffer_bytes is 1000"),
                (first, {"z": np.ones(1, np.complex64)}, psd.InvalidArgument, "buffer 'z' has dtype complex64")):
            with self.subTest(why), self.assertRaisesRegex(kind, why):
                client.set_buffers(buffers)

        def file(header, data=b""):
            text = json.dumps(header).encode() if isinstance(header, dict) else header
            return len(text).to_bytes(8, "little") + text + data

        def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
            return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}

        for bytes_, why in (
                (b"1234567", "shorter than 8 bytes"),
                (b"\xff" * 16, "its header length does not fit"),
                (file(b"{"), "no safetensors file"),
                (file({"a": entry("F33")}, b"1234"), "buffer 'a' has the unknown dtype 'F33'"),
                (file({"a": entry(shape=[2])}, b"1234"), "do not match its shape"),
                (file({"a": entry(offsets=(0, 8))}, b"1234"), "outside the file"),
                (file({"a": entry(), "b": entry()}, b"1234"), "overlap"),
                (file({"a": entry()}, b"12345678"), "its values have 8 bytes, and 4 bytes belong to buffers")):
            with self.subTest(why), self.assertRaisesRegex(psd.InvalidArgument, why):
                first._client.set_buffers(bytes_)
        self.assert_buffers(first, {"kept": np.ones(2)})

    def test_modules_that_cannot_be_served_are_refused_before_the_join(self):
        daemon = self.daemon(policy="locked")
        module = Network()
        with self.assertRaisesRegex(psd.InvalidArgument, "buffers is 'local' or 'rank0', not 'mean'"):
            psd.torch.Optimizer(module, daemon.address, buffers="mean")
        module.register_buffer("wave", torch.zeros(1, dtype=torch.complex64))
        with self.assertRaisesRegex(psd.InvalidArgument, "buffer 'wave' is torch.complex64"):
            self.optimizer(module, daemon, 0)
        local = psd.torch.Optimizer(Network(), daemon.address, rank=0, world_size=2)
        self.addCleanup(local.client.close)
        with self.assertRaisesRegex(psd.InvalidArgument, "pull_buffers.. needs buffers='rank0'"):
            local.pull_buffers()
        local.close()
        self.optimizer(Network(), daemon, 0)
        other = Network()
        other.mask = torch.zeros(3, dtype=torch.bool)
        values = [value.clone() for value in other.state_dict().values()]
        with self.assertRaisesRegex(psd.ModelMismatch, r"buffer 'mask' is torch.bool of shape \(3,\) in the module, and torch.bool of shape \(8,\)"):
            self.optimizer(other, daemon, 1)
        for before, after in zip(values, other.state_dict().values()):
            self.assertTrue(torch.equal(before, after))

    def test_a_restored_model_has_the_buffers_of_rank_0(self):
        daemon = self.daemon(policy="locked", optimizer=None)
        model = Network()
        optimizer = psd.torch.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), daemon.address, buffers="rank0")
        self.addCleanup(optimizer.client.close)
        saved = {key: value.clone() for key, value in model.state_dict().items()}
        saved["body.1.running_mean"] += 7
        model.load_state_dict(saved)
        optimizer.load_state_dict(torch.optim.SGD(model.parameters(), lr=0.1).state_dict())
        self.assertTrue(torch.equal(torch.from_numpy(self.reader(daemon).buffers()["body.1.running_mean"]), saved["body.1.running_mean"]))

    def test_arguments_of_another_kind(self):
        client = self.plain(self.daemon(policy="locked"))
        for call in (lambda: client.set_buffers(None), lambda: client.restore_state(PLAIN.zeros(), None, [0])):
            with self.assertRaisesRegex(psd.InvalidArgument, "None; expected a dictionary"):
                call()

    def test_buffers_that_the_daemon_refuses_fail_no_step(self):
        daemon = self.daemon(policy="locked", optimizer='{"type":"sgd","lr":0.1}')
        model = Network()
        optimizer = psd.torch.Optimizer(model, daemon.address, buffers="rank0")
        self.addCleanup(optimizer.client.close)
        optimizer.client.set("limits.buffer_bytes=10")
        with self.assertLogs("psd", logging.WARNING) as logs:
            optimizer.state_dict()
        self.assertIn("the daemon keeps the previous buffers: ", logs.output[0])
        with self.assertRaisesRegex(psd.Overloaded, "limits.buffer_bytes"):
            optimizer.push_buffers()

    def test_buffers_move_with_the_model(self):
        def serving(name, count):
            addresses = [self.unix_address(f"{name}{i}.sock") for i in range(count)]
            several = {"daemons": addresses} if count > 1 else {}
            return [self.daemon(listen=(address,), policy="locked", **several, **({"index": i} if several else {}))
                    for i, address in enumerate(addresses)]

        first = serving("a", 1)
        client = self.plain(first[0])
        client.set_buffers(ARRAYS)
        reader = self.reader(first[0])
        for name, count in (("b", 2), ("c", 1)):
            others = serving(name, count)
            self.move_model(first[0], others[0], client, PLAIN)
            for one in (client, reader):
                self.assert_buffers(one, ARRAYS)
            client.set_buffers(ARRAYS)
            self.psd("export", "--server", others[-1].address, "--to", self.folder / name)
            inspected = json.loads(self.psd("inspect", "--json", self.folder / name))
            self.assertEqual({buffer["name"] for buffer in inspected["buffers"]}, {*ARRAYS})
            first = others

    @unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
    def test_a_standby_has_the_newest_buffers(self):
        store = etcd.Etcd(self)
        settings = {"policy": "locked", "engine": {"endpoints": store.endpoints, "prefix": "/psd/test"},
                    "replication": {"silence_ms": 1000, "alone_ms": 20_000}}
        primary = self.daemon(listen=(self.unix_address("a.sock"),), **settings)
        primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        both = [self.unix_address("a.sock"), self.unix_address("b.sock")]
        client = psd.Client(both)
        self.addCleanup(client.close)
        client.join(PLAIN, PLAIN.zeros(), 0, 1)
        client.set_buffers({"old": np.ones(1)})
        self.daemon(listen=(self.unix_address("b.sock"),), **settings)
        primary.until_in_sync()
        client.set_buffers(ARRAYS)
        primary.kill()
        self.assert_buffers(client, ARRAYS)


if __name__ == "__main__":
    processes.main()
