"""Tensors of bfloat16 and float16: values and gradients travel in the dtype, the daemon computes with float32."""

import io
import sys
import unittest
import unittest.mock

import etcd
import numpy as np
import processes
import torch
from safetensors_file import torch_tensors
from torch import nn

import psd
import psd.torch

SGD = '{"type":"sgd","lr":0.1}'


def net(dtype=torch.bfloat16, seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 8)).to(dtype)


def batch(step, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 40, generator=generator).to(dtype), torch.randint(0, 8, (16,), generator=generator)


def loss_of(model, step, dtype=torch.bfloat16):
    inputs, classes = batch(step, dtype)
    return nn.functional.cross_entropy(model(inputs).float(), classes)


def bits(model):
    return {key: value.detach().clone().view(torch.int16) for key, value in model.named_parameters()}


class PythonPrecision(processes.ProcessTest):
    def serve(self, **settings):
        return self.daemon(**{"shards": 2, "policy": "locked", "optimizer": SGD, **settings})

    def close_later(self, closing):
        self.addCleanup(getattr(closing, "client", closing).close)
        return closing

    def observer(self, daemon, **options):
        client = self.close_later(psd.Client(daemon.address, **options))
        client.observe(wait=10)
        return client

    def pulled(self, client):
        values = client.model.zeros()
        client.pull(values)
        return {name: view.copy() for name, view in client.model.views(values).items()}

    def same_bits(self, model, masters, dtype):
        for key, value in model.named_parameters():
            self.assertTrue(torch.equal(value.detach().view(torch.int16), masters[key].to(dtype).view(torch.int16)), key)

    def test_equals_float32_masters(self):
        """Each step equals that of a float32 copy of the parameters, rounded to nearest even for the module."""
        for dtype in (torch.bfloat16, torch.float16):
            for transport in ("rpc", "auto"):
                with self.subTest(dtype=dtype, transport=transport):
                    daemon, model, reference = self.serve(), net(dtype), net(dtype)
                    optimizer = self.close_later(psd.torch.Optimizer(model, daemon.address, transport=transport))
                    masters = {key: value.detach().float() for key, value in reference.named_parameters()}
                    for step in range(5):
                        optimizer.zero_grad()
                        loss_of(model, step, dtype).backward()
                        optimizer.step()
                        reference.zero_grad()
                        loss_of(reference, step, dtype).backward()
                        with torch.no_grad():
                            for key, value in reference.named_parameters():
                                masters[key] -= 0.1 * value.grad.float()
                                value.copy_(masters[key])
                        self.same_bits(model, masters, dtype)

    def test_scripts_optimizer(self):
        daemon, model, reference = self.serve(shards=1, optimizer=None), net(), net()
        made = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        optimizer = self.close_later(psd.torch.Optimizer(made, daemon.address))
        masters = {key: nn.Parameter(value.detach().float()) for key, value in reference.named_parameters()}
        plain = torch.optim.AdamW(masters.values(), lr=1e-2, weight_decay=0.1)
        for step in range(10):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            with torch.no_grad():
                for key, value in reference.named_parameters():
                    value.copy_(masters[key])
            reference.zero_grad()
            loss_of(reference, step).backward()
            for key, value in reference.named_parameters():
                masters[key].grad = value.grad.float()
            plain.step()
        for key, value in model.named_parameters():
            torch.testing.assert_close(value.detach().float(), masters[key].detach(), rtol=1e-2, atol=1e-3)

    def test_half_the_bytes(self):
        moved = {}
        for dtype in (torch.float32, torch.bfloat16):
            model = net(dtype)
            optimizer = self.close_later(psd.torch.Optimizer(model, self.serve().address, transport="rpc"))
            before = optimizer.client.bytes_pulled
            loss_of(model, 0, dtype).backward()
            optimizer.step()
            moved[dtype] = optimizer.client.bytes_pushed + optimizer.client.bytes_pulled - before
        self.assertLessEqual(moved[torch.bfloat16], 0.51 * moved[torch.float32])

    def test_no_float32_copy(self):
        """The module's parameters and gradients are the arrays that travel."""
        model = net()
        optimizer = self.close_later(psd.torch.Optimizer(model, self.serve().address))
        memory = np.asarray(optimizer._values)
        self.assertEqual((memory.dtype, len(memory)), (np.uint8, optimizer.model.bytes))
        first = memory.ctypes.data
        for value in model.parameters():
            self.assertTrue(first <= value.data_ptr() < first + len(memory))

    def test_mixed(self):
        """Interleaved dtypes cost one shard for each dtype; each tensor keeps its own."""
        class Mixed(nn.Module):
            def __init__(self):
                super().__init__()
                for index in range(6):
                    kind = (torch.float32, torch.bfloat16, torch.float16)[index % 3]
                    self.register_parameter(f"p{index}", nn.Parameter(torch.full((5 + index, 3), 1 + index / 8, dtype=kind)))

        daemon, model = self.serve(shards=1), Mixed()
        optimizer = self.close_later(psd.torch.Optimizer(model, daemon.address))
        self.assertEqual(optimizer._info.shards, 3)
        self.assertEqual(optimizer.model.dtypes, {"p0": "f32", "p3": "f32", "p1": "bf16", "p4": "bf16", "p2": "f16", "p5": "f16"})
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 2.5)
        optimizer.step()
        for index, parameter in enumerate(model.parameters()):
            wanted = torch.full((5 + index, 3), float(np.float32(1 + index / 8) - np.float32(0.1) * np.float32(2.5)))
            self.assertTrue(torch.equal(parameter.detach(), wanted.to(parameter.dtype)), index)
        observer = self.observer(daemon)
        self.assertEqual(observer.model.dtypes, optimizer.model.dtypes)
        self.assertEqual(self.pulled(observer)["p2"].dtype, np.float16)

    def test_a_module_of_several_dtypes_is_saved(self):
        model = net()
        model[0].float()
        optimizer = self.close_later(psd.torch.Optimizer(model, self.serve().address))
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        for key, value in torch.load(file)["model"].items():
            self.assertTrue(torch.equal(value, model.state_dict()[key]), key)

    def test_codecs(self):
        """A codec encodes the gradient as float32, and a pull in a codec is rounded to the dtype."""
        daemon, model = self.serve(), net()
        optimizer = self.close_later(psd.torch.Optimizer(model, daemon.address, codec="int8", pull_codec="int8"))
        before = {key: value.detach().clone() for key, value in model.named_parameters()}
        loss_of(model, 0).backward()
        gradients = {key: value.grad.clone() for key, value in model.named_parameters()}
        optimizer.step()
        for key, value in model.named_parameters():
            wanted = before[key].float() - 0.1 * gradients[key].float()
            torch.testing.assert_close(value.detach().float(), wanted, rtol=0.05, atol=0.01)

    def test_without_ml_dtypes(self):
        """Views of bfloat16 are then of their bits, and values are rounded to nearest even."""
        values = np.linspace(-3, 3, 999, dtype=np.float32)
        model = psd.Model("m", {"w": (999,)}, dtypes={"w": "bf16"})
        with unittest.mock.patch.dict(sys.modules, {"ml_dtypes": None}):
            bits_of = model.views(model.flatten({"w": values}))["w"]
        self.assertEqual(bits_of.dtype, np.uint16)
        self.assertTrue(torch.equal(torch.from_numpy(bits_of).view(torch.bfloat16), torch.from_numpy(values).bfloat16()))

    def test_client_converts_float32_arrays(self):
        daemon = self.serve()
        model = psd.Model("m", {"w": (100,)}, dtypes={"w": "bf16"})
        client = self.close_later(psd.Client(daemon.address))
        initial = model.zeros(float32=True)
        initial[:100] = np.linspace(-1, 1, 100)
        client.join(model, initial, 0, 1)
        wide, native = model.zeros(float32=True), model.zeros()
        client.pull(wide)
        client.pull(native)
        rounded = torch.from_numpy(initial[:100].copy()).bfloat16()
        self.assertTrue(torch.equal(torch.from_numpy(wide[:100]), rounded.float()))
        self.assertTrue(torch.equal(torch.from_numpy(native)[:200].view(torch.bfloat16), rounded))
        gradient = model.zeros(float32=True)
        gradient[:100] = 1 / 3
        client.push(gradient)
        client.pull(wide)
        third = float(torch.tensor(1 / 3).bfloat16())
        self.assertTrue(torch.equal(torch.from_numpy(wide[:100]), (rounded.float() - np.float32(0.1) * np.float32(third)).bfloat16().float()))
        flat = model.flatten({"w": initial[:100]})
        self.assertTrue(torch.equal(torch.from_numpy(flat)[:200].view(torch.bfloat16), rounded))

    def test_master_beyond_float16(self):
        daemon = self.serve()
        model = psd.Model("m", {"small": (16,), "large": (20,)}, dtypes={"small": "f16", "large": "f16"})
        client = self.close_later(psd.Client(daemon.address))
        client.join(model, model.zeros(), 0, 1)
        gradient = model.zeros()
        model.views(gradient)["large"][3] = -60000
        for _ in range(11):
            client.push(gradient, basis=[])
        with self.assertRaisesRegex(psd.NonFinite, "large.*65504"):
            client.pull(model.zeros())
        self.assertEqual(client.status()["model"]["name"], "m")  # the daemon continues

    def test_refused(self):
        daemon = self.serve()
        with self.assertRaisesRegex(psd.InvalidArgument, "float64.*float32, bfloat16 or float16.*float32"):
            psd.torch.Optimizer(net(torch.float64), daemon.address)
        with self.assertRaisesRegex(psd.InvalidArgument, "'w'.*f64.*f32, bf16 or f16"):
            psd.Model("m", {"w": (3,)}, dtypes={"w": "f64"})
        with self.assertRaisesRegex(psd.InvalidArgument, "dtypes is 'bf16'"):
            psd.Model("m", {"w": (3,)}, dtypes="bf16")
        with self.assertRaisesRegex(psd.InvalidArgument, "'v'.*no tensor"):
            psd.Model("m", {"w": (3,)}, dtypes={"v": "bf16"})
        model = net()
        optimizer = self.close_later(psd.torch.Optimizer(model, daemon.address))
        with self.assertRaisesRegex(psd.Error, r"bf16\[64,40\].*f32\[64,40\]|f32\[64,40\].*bf16\[64,40\]"):
            psd.torch.Optimizer(net(torch.float32), daemon.address, world_size=2)
        model.float()
        with self.assertRaisesRegex(psd.InvalidArgument, "float32 now, and bf16 in the daemon's model"):
            optimizer.step()

    def test_not_finite(self):
        daemon = self.serve()
        model = psd.Model("m", {"w": (16,), "v": (16,)}, dtypes={"w": "f16", "v": "f16"})
        client = self.close_later(psd.Client(daemon.address))
        values = model.zeros()
        model.views(values)["v"][2] = np.nan
        with self.assertRaisesRegex(psd.NonFinite, "v|the tensors from w to v"):
            client.join(model, values, 0, 1)

    def test_restart_export_and_reader(self):
        settings = {"listen": (self.unix_address(),), "durability__type": "log", "durability__path": str(self.folder / "saved")}
        daemon, model = self.serve(**settings), net()
        optimizer = self.close_later(psd.torch.Optimizer(model, daemon.address))
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        daemon.kill()
        daemon = self.serve(**settings)
        values = self.pulled(self.observer(daemon))
        for key, value in model.named_parameters():
            self.assertTrue(torch.equal(torch.from_numpy(values[key].view(np.uint16)).view(torch.bfloat16), value.detach()), key)
        exported = self.folder / "model.safetensors"
        self.assert_ends(self.start_psd("export", "--server", daemon.address, str(exported)))
        tensors = torch_tensors(exported)
        for key, value in model.named_parameters():
            self.assertEqual(tensors[key].dtype, torch.bfloat16)
            self.assertTrue(torch.equal(tensors[key], value.detach()), key)
        started = self.serve(model__file=str(exported))
        again = self.pulled(self.observer(started))
        self.assertTrue(all(np.array_equal(again[key].view(np.uint16), values[key].view(np.uint16)) for key in values))

    def test_full_state(self):
        """A run that continues at another daemon has the same float32 values, which the module's are rounded from."""
        def steps(model, optimizer, numbers):
            for step in numbers:
                optimizer.zero_grad()
                loss_of(model, step).backward()
                optimizer.step()

        def started():
            model = net()
            made = torch.optim.AdamW(model.parameters(), lr=1e-3)
            return model, self.close_later(psd.torch.Optimizer(made, self.serve(optimizer=None).address))

        model, optimizer = started()
        steps(model, optimizer, range(4))
        saved = optimizer.state_dict(full=True)
        values = {key: value.clone() for key, value in model.state_dict().items()}
        steps(model, optimizer, range(4, 12))
        again, other = started()
        again.load_state_dict(values)
        other.load_state_dict(saved)
        steps(again, other, range(4, 12))
        for key, value in bits(again).items():
            self.assertTrue(torch.equal(value, bits(model)[key]), key)
        plain = torch.optim.AdamW(net(torch.float32).parameters(), lr=1e-3)
        plain.load_state_dict(saved)
        self.assertEqual(plain.state[plain.param_groups[0]["params"][0]]["exp_avg"].dtype, torch.float32)

    def test_several_daemons(self):
        addresses = [self.unix_address(f"{index}.sock") for index in range(2)]
        for index in range(2):
            self.serve(listen=(addresses[index],), daemons=addresses, index=index)
        model = net()
        model[0].float()
        optimizer = self.close_later(psd.torch.Optimizer(model, ",".join(addresses)))
        before = {key: value.detach().clone() for key, value in model.named_parameters()}
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.25)
        optimizer.step()
        for key, value in model.named_parameters():
            wanted = (before[key].float() - np.float32(0.1) * np.float32(0.25)).to(value.dtype)
            self.assertTrue(torch.equal(value.detach(), wanted), key)

    def counting(self):
        """A model whose cut for two daemons is within its tensors of 16 bits, and its initial values."""
        model = psd.Model("mixed", {"a": (48,), "b": (96, 16), "c": (5,)}, dtypes={"b": "bf16", "c": "f16"})
        return model, model.flatten({name: np.linspace(-1, 1, int(np.prod(shape))).reshape(shape) for name, shape in model.shapes.items()})

    def steps(self, client, model, count):
        """Pushes of ones; the exact values after them in each dtype, if `count` is all that was pushed."""
        for _ in range(count):
            client.push(model.flatten({name: np.ones(shape) for name, shape in model.shapes.items()}), basis=[])

    def assert_trained(self, client, model, initial, count):
        pulled = model.zeros()
        client.pull(pulled)
        for (name, view), start in zip(model.views(pulled).items(), model.views(initial).values()):
            wanted = torch.from_numpy(start.astype(np.float32))
            for _ in range(count):
                wanted = wanted - np.float32(0.1)
            kind = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[model.dtypes[name]]
            self.assertTrue(torch.equal(torch.from_numpy(view.astype(np.float32)), wanted.to(kind).float()), name)

    def test_move(self):
        """To two daemons, whose cut is within a tensor of 16 bits, and back to one."""
        def serving(name, count):
            addresses = [self.unix_address(f"{name}{i}.sock") for i in range(count)]
            several = {"daemons": addresses} if count > 1 else {}
            return [self.serve(listen=(address,), **several, **({"index": i} if several else {})) for i, address in enumerate(addresses)]

        daemons, (model, initial) = serving("a", 1), self.counting()
        client = self.close_later(psd.Client(daemons[0].address))
        client.join(model, initial, 0, 1)
        self.steps(client, model, 3)
        for name, count in (("b", 2), ("c", 1)):
            others = serving(name, count)
            self.move_model(daemons[0], others[0], client, model)
            self.assert_trained(client, model, initial, 3)
            daemons = others

    @unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
    def test_standby(self):
        store = etcd.Etcd(self)
        both = [self.unix_address("a.sock"), self.unix_address("b.sock")]
        settings = {"engine": {"endpoints": store.endpoints, "prefix": "/psd/test"}, "replication": {"silence_ms": 1000, "alone_ms": 20_000}}
        primary = self.serve(listen=(both[0],), **settings)
        primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        model, initial = self.counting()
        client = self.close_later(psd.Client(both))
        client.join(model, initial, 0, 1)
        self.steps(client, model, 2)
        self.serve(listen=(both[1],), **settings)
        primary.until_in_sync()
        self.steps(client, model, 2)
        primary.kill()
        self.assert_trained(client, model, initial, 4)

    def test_diloco_with_deltas(self):
        """Differences to the values pulled last are of float32 values, for parameters of each dtype."""
        daemon = self.daemon(policy="diloco", policy__period=2, policy__deltas="e3m0", optimizer='{"type":"sgd","lr":1.0}')
        model = net()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        learner = self.close_later(psd.torch.DiLoCo(model, inner, daemon.address))
        losses = []
        for step in range(20):
            inner.zero_grad()
            loss = loss_of(model, step % 4)
            loss.backward()
            inner.step()
            losses.append(loss.item())
        self.assertEqual((learner.rounds, learner.late), (10, 0))
        self.assertLess(sum(losses[-4:]), 0.9 * sum(losses[:4]))

    def test_diloco_pushes_no_rounding(self):
        """Steps of rate zero leave the daemon's float32 values as they are, although the module's are rounded."""
        daemon = self.daemon(policy="diloco", policy__period=2, optimizer='{"type":"sgd","lr":0.7}')
        model = net()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        learner = self.close_later(psd.torch.DiLoCo(model, inner, daemon.address))
        for step in range(4):
            inner.zero_grad()
            loss_of(model, step).backward()
            inner.step()
        trained = bits(model)
        inner.param_groups[0]["lr"] = 0.0
        for step in range(4):
            inner.zero_grad()
            loss_of(model, step).backward()
            inner.step()
        self.assertEqual(learner.rounds, 4)
        for key, value in bits(model).items():
            self.assertTrue(torch.equal(value, trained[key]), key)

    def test_jax(self):
        try:
            import jax.numpy as jnp

            import psd.jax
        except ImportError:
            self.skipTest("JAX is not installed")
        daemon = self.serve()
        parameters = {"w": jnp.linspace(-1, 1, 24, dtype=jnp.bfloat16).reshape(4, 6), "b": jnp.ones(3)}
        with psd.jax.Trainer(parameters, daemon.address) as trainer:
            trainer.push({"w": jnp.full((4, 6), 0.5, jnp.bfloat16), "b": jnp.ones(3)})
            pulled = trainer.pull()
        self.assertEqual(pulled["w"].dtype, jnp.bfloat16)
        wanted = (parameters["w"].astype(jnp.float32) - np.float32(0.1) * np.float32(0.5)).astype(jnp.bfloat16)
        self.assertTrue(bool((pulled["w"] == wanted).all()))


if __name__ == "__main__":
    processes.main()
