"""psd.vllm: inference workers of vLLM load the version that a program announces, whole and verified, or keep the one that they have."""

import importlib
import importlib.util
import os
import random
import re
import subprocess
import sys
import tempfile
import types
import unittest.mock

import numpy as np
import processes

if importlib.util.find_spec("torch") is None:
    print("skipped: no torch")
    sys.exit(processes.EXIT_SKIPPED)

import torch
import vllm_modules
from test_python_follower import WIDE, FollowerTest, step

import psd
import psd.vllm

with tempfile.TemporaryDirectory(prefix="psd-") as scratch:
    FROM = vllm_modules.install(scratch)
    psd.vllm.register()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    import psd._vllm_engine
print(f"vLLM's base class: {FROM}")

torch.accelerator.synchronize = lambda: None  # the base class calls it, also where there is no accelerator
VLLM_CONFIG = types.SimpleNamespace(parallel_config=None, model_config=types.SimpleNamespace(dtype=torch.float32))


class ServedModel:
    """A model as vLLM's: load_weights() takes names and tensors."""

    def __init__(self):
        self.weights = {}

    def load_weights(self, weights):
        for name, tensor in weights:
            self.weights[name] = tensor.clone()
        return set(self.weights)


class Worker:
    """The calls that vLLM's worker makes of its engine."""

    def __init__(self, **init_info):
        self.model = ServedModel()
        self.engine = WeightTransferEngineFactory.create_engine(types.SimpleNamespace(backend="psd"), VLLM_CONFIG, torch.device("cpu"),
                                                                self.model)
        if init_info:
            self.engine.init_transfer_engine(self.engine.parse_init_info(init_info))

    def update(self, version):
        self.engine.start_weight_update()
        self.engine.update_weights({"version": version})
        self.engine.finish_weight_update()

    @property
    def reloads(self):
        return [what for what, model in vllm_modules.reloads if model is self.model]


class Updates(FollowerTest):
    def setUp(self):
        self.addCleanup(vllm_modules.reloads.clear)

    def worker(self, **init_info):
        worker = Worker(**init_info)
        self.addCleanup(worker.engine.shutdown)
        return worker

    def assert_loaded(self, worker, value):
        self.assertEqual({name: tuple(tensor.shape) for name, tensor in worker.model.weights.items()}, dict(WIDE.shapes))
        for tensor in worker.model.weights.values():
            self.assertEqual(set(tensor.unique().tolist()), {value})

    def test_workers_load_the_announced_version(self):
        daemon = self.publishing(folder=None)
        trainer, workers = self.joined(daemon, WIDE), [self.worker(server=daemon.address) for _ in range(2)]
        self.publish(daemon)
        trainer.push(step(WIDE, 3))
        ended = [self.in_background(worker.update, 2) for worker in workers]  # it does not exist yet
        self.publish(daemon)
        for worker, end in zip(workers, ended):
            self.assertIsNone(end())
            self.assert_loaded(worker, 3)
            self.assertEqual(worker.reloads, ["initialize", "finalize"])
        trainer.push(step(WIDE, 4))
        self.publish(daemon)
        workers[0].update(2)  # not the newest, but the one that was announced
        self.assert_loaded(workers[0], 3)
        # A worker that has ended delays no other.
        workers[0].engine.shutdown()
        workers[1].update(3)
        self.assert_loaded(workers[1], 7)
        workers[1].update(1)
        self.assert_loaded(workers[1], 0)

    def test_dtypes(self):
        model = psd.Model("mixed", {"full": (3,), "brain": (5,), "half": (2, 3)}, dtypes={"brain": "bf16", "half": "f16"})
        daemon = self.publishing(folder=None)
        values = {"full": np.arange(3), "brain": np.arange(5), "half": np.arange(6).reshape(2, 3)}
        self.client(daemon).join(model, model.flatten(values), 0, 1)
        self.publish(daemon)
        worker = self.worker(server=daemon.address)
        worker.update(1)
        for name, dtype in (("full", torch.float32), ("brain", torch.bfloat16), ("half", torch.float16)):
            self.assertEqual(worker.model.weights[name].dtype, dtype)
            np.testing.assert_array_equal(worker.model.weights[name].float().numpy(), values[name])

    def test_what_cannot_be_read_leaves_the_model_as_it_is(self):
        daemon = self.publishing(publish={"keep": 2})
        self.joined(daemon, WIDE)
        for _ in range(3):
            self.publish(daemon)
        with (self.folder / "saved" / "versions" / "version-0000000003.safetensors").open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x01")
        worker, impatient = self.worker(server=daemon.address), self.worker(server=daemon.address, timeout=0.05)
        for version, error in ((1, psd.NotReady), (3, psd.InputOutputError)):
            with self.assertRaises(error):
                worker.update(version)
        with self.assertRaises(TimeoutError):
            impatient.update(9)
        self.assertEqual(impatient.reloads, [])
        self.assertEqual((worker.model.weights, worker.reloads), ({}, []))
        worker.update(2)
        self.assert_loaded(worker, 0)

    def test_a_model_that_rejects_a_tensor(self):
        daemon = self.publishing(folder=None)
        self.joined(daemon, WIDE)
        self.publish(daemon)
        worker = self.worker(server=daemon.address)
        with unittest.mock.patch.object(worker.model, "load_weights", side_effect=KeyError("matrix")), self.assertRaises(KeyError):
            worker.update(1)
        self.assertEqual(worker.reloads, ["initialize", "finalize"], "the next version begins with all layers")
        worker.update(1)
        self.assert_loaded(worker, 0)

    def test_from_shared_memory(self):
        file = f"/dev/shm/psd-test-{os.getpid()}-{random.randrange(1 << 48):012x}"
        self.addCleanup(lambda: os.path.exists(file) and os.unlink(file))
        daemon = self.publishing(folder=None)
        trainer, workers = self.joined(daemon, WIDE), [self.worker(shared=file) for _ in range(2)]
        self.start_psd("follow", "--server", daemon.address, "--shared", file)
        for number in range(1, 4):
            trainer.push(step(WIDE, 1))
            self.publish(daemon)
            for worker in workers:
                worker.update(number)
                self.assert_loaded(worker, number)
        with self.assertRaisesRegex(psd.NotReady, "has no version 2 any more: announce the newest"):
            workers[0].update(2)
        self.assert_loaded(workers[0], 3)

    def test_the_place_of_the_environment(self):
        daemon = self.publishing(folder=None)
        self.joined(daemon, WIDE)
        self.publish(daemon)
        worker = self.worker()
        with unittest.mock.patch.dict(os.environ, clear=True), self.assertRaisesRegex(psd.InvalidArgument, "no server is given"):
            worker.update(1)
        with unittest.mock.patch.dict(os.environ, PSD_SERVER=daemon.address):
            worker.update(1)
        self.assert_loaded(worker, 0)

    def test_another_place(self):
        """A trainer that restarts names its daemon again; one that cannot be reached changes nothing."""
        daemons = [self.publishing(folder=None) for _ in range(2)]
        for number, daemon in enumerate(daemons, 1):
            self.joined(daemon, WIDE).push(step(WIDE, number))
            self.publish(daemon)
        worker = self.worker(server=daemons[0].address)
        with unittest.mock.patch("psd._vllm_engine.Follower", side_effect=psd.Unavailable("no")), self.assertRaises(psd.Unavailable):
            worker.engine.init_transfer_engine(worker.engine.parse_init_info({"server": daemons[1].address}))
        for number, daemon in enumerate(daemons, 1):
            if number == 2:
                worker.engine.init_transfer_engine(worker.engine.parse_init_info({"server": daemon.address}))
            worker.update(1)
            self.assert_loaded(worker, number)


class Infos(unittest.TestCase):
    def test_wrong_ones(self):
        engine = Worker().engine
        for parse, given, words in (
                (engine.parse_init_info, {"master_address": "host"}, "master_address"),
                (engine.parse_init_info, {"server": 5500}, "server is 5500; expected text"),
                (engine.parse_init_info, {"timeout": "long"}, "timeout is 'long'; expected a number"),
                (engine.parse_init_info, {"server": "tcp://host:1", "shared": "/dev/shm/model"}, "exclude each other"),
                (engine.parse_update_info, {}, "version"),
                (engine.parse_update_info, {"version": "12"}, "version is '12'; expected a whole number"),
                (engine.parse_update_info, {"version": 0}, "version is 0; expected a whole number from 1")):
            with self.subTest(given=given), self.assertRaisesRegex(ValueError, words):
                parse(given)
        self.assertFalse(engine.supports_draft_weight_update)

    def test_registered_once(self):
        psd.vllm.register()
        psd.vllm.plugin()
        text = (processes.REPO / "trainer" / "python" / "pyproject.toml").read_text(encoding="utf-8")
        module, function = re.search(r'\[project.entry-points."vllm.general_plugins"\]\npsd = "([\w.]+):(\w+)"\n', text).groups()
        self.assertIs(getattr(importlib.import_module(module), function), psd.vllm.plugin)

    def test_a_vllm_without_weight_transfer(self):
        program = "import sys, types; sys.modules['vllm'] = types.ModuleType('vllm'); import psd.vllm; psd.vllm.plugin()"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=processes.WAIT_S, check=True)
        self.assertRegex(done.stderr, "^this vLLM gets no weight transfer backend psd: [^\n]*\n$")


if __name__ == "__main__":
    processes.main()
