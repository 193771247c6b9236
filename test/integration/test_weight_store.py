"""A daemon that stores versions of weights which other programs train: psd.Publisher, with one and several ranks."""

import contextlib
import json
import pathlib
import random
import subprocess
import sys
import threading
import unittest
import unittest.mock

import cutter
import numpy as np
import processes
import test_python_follower

import psd

torch = None
with contextlib.suppress(ImportError):
    import torch

CONFIG = processes.REPO / "configs" / "weight_store.json"
# Publishes the steps that it reads, one a line; prints what it got.
PROGRAM = """
import sys, numpy as np, psd, test_weight_store
address, rank, world_size, megabytes = sys.argv[1], *map(int, sys.argv[2:])
publisher = psd.Publisher(address, rank=rank, world_size=world_size, retry_timeout=120)
for line in sys.stdin:
    step = int(line)
    version = publisher.publish(step, test_weight_store.half(rank, world_size, step, megabytes))
    print(version.number, version.step, flush=True)
"""


def large(step, megabytes):
    return np.random.default_rng(step).integers(0, 256, (megabytes * 1024, 1024), np.uint8)


def half(rank, world_size, step, megabytes):
    """A rank's rows of a large tensor, and a replicated one."""
    rows = megabytes * 1024 // world_size
    return {"large": psd.Part(large(step, megabytes)[rank * rows:(rank + 1) * rows], shape=(megabytes * 1024, 1024), offset=(rank * rows, 0)),
            "step": np.int64(step)}


class StoreTest(test_python_follower.FollowerTest):
    def store(self, *arguments, listen="tcp://127.0.0.1:0", folder="versions", **settings):
        """A daemon with the example's configuration; `folder` None: in memory."""
        values = {"publish.path": str(self.folder / folder) if folder else "", **{key.replace("__", "."): value for key, value in settings.items()}}
        flags = [part for key, value in values.items() for part in ("--set", f"{key}={json.dumps(value)}")]
        daemon = processes.Daemon(self.folder, self._name("psd"), ["--config", str(CONFIG), "--listen", listen, *flags, *arguments])
        self.processes.append(daemon)
        return daemon

    def publisher(self, daemon, rank=0, world_size=1, **options):
        publisher = psd.Publisher(daemon if isinstance(daemon, str) else daemon.address, rank=rank, world_size=world_size,
                                  on_event=lambda *_: None, **options)
        self.addCleanup(publisher.close)
        return publisher

    def program(self, daemon, rank, world_size, megabytes):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, daemon.address, *map(str, (rank, world_size, megabytes))],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=pathlib.Path(__file__).parent)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    @staticmethod
    def order(program, step):
        program.stdin.write(f"{step}\n")
        program.stdin.flush()

    def answer(self, program):
        """The number and the step of the version that a program got."""
        line = self.in_background(program.stdout.readline)()
        self.assertTrue(line, "the program has ended")
        return tuple(map(int, line.split()))

    def together(self, *calls):
        """What calls return that run at the same time; an exception is returned too."""
        return [ended() for ended in [self.in_background(call) for call in calls]]


class Publishing(StoreTest):
    def test_every_dtype(self):
        daemon = self.store()
        bits = np.arange(256, dtype=np.uint8)  # NaN of each float8
        tensors = {dtype: np.arange(6, dtype=dtype).reshape(2, 3) for dtype in
                   ("float64", "int64", "uint64", "float32", "int32", "uint32", "float16", "int16", "uint16", "int8", "uint8")}
        tensors |= {"bool": np.array([True, False, True]), "scalar": np.float32(7), "none": np.zeros((0, 3), np.int8),
                    "nan": np.full((3,), np.nan, np.float32), "big": np.arange(3, dtype=">i4"), "transposed": np.arange(6).reshape(2, 3).T}
        version = self.publisher(daemon).publish(3, {**tensors, "e4m3": psd.Part(bits, dtype="F8_E4M3"), "e5m2": psd.Part(bits, dtype="F8_E5M2"),
                                                     "bf16": psd.Part(np.arange(9, dtype=np.uint16), dtype="BF16")})
        self.assertEqual((version.number, version.step, version.moment), (1, 3, "step"))
        follower = self.follower(daemon)
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 1)
        self.assertEqual((follower.info.step, follower.info.moment), (3, "step"))
        found = follower.tensors()
        for name, array in tensors.items():
            with self.subTest(name):
                self.assertEqual(found[name].dtype, np.asarray(array).dtype.newbyteorder("="))
                np.testing.assert_array_equal(found[name], array)
                self.assertEqual(found[name].shape, np.shape(array))
                self.assertTrue(found[name].flags.aligned)
        for name in ("e4m3", "e5m2"):
            np.testing.assert_array_equal(found[name].view(np.uint8), bits)
        np.testing.assert_array_equal(found["bf16"].view(np.uint16), np.arange(9))
        with unittest.mock.patch.dict(sys.modules, {"ml_dtypes": None}):  # not installed
            plain = follower.tensors()
        self.assertEqual((plain["e4m3"].dtype, plain["bf16"].dtype), (np.uint8, np.uint16))

    @unittest.skipIf(torch is None, "needs PyTorch")
    def test_pytorch(self):
        daemon = self.store(folder=None)
        values = torch.arange(48, dtype=torch.float32).reshape(6, 8)
        tensors = {name: values.to(getattr(torch, name)) for name in
                   ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32", "float64", "int8", "int16", "int32", "int64",
                    "uint8", "uint16", "uint32", "uint64")}
        tensors |= {"bool": values > 20, "strided": values.t(), "scalar": torch.tensor(3), "gradient": torch.nn.Parameter(values)}
        self.publisher(daemon).publish(1, tensors)
        follower = self.follower(daemon)
        follower.wait(timeout=processes.WAIT_S)
        found = follower.torch_tensors()
        for name, tensor in tensors.items():
            with self.subTest(name):
                self.assertEqual((found[name].dtype, found[name].shape), (tensor.dtype, tensor.shape))
                self.assertTrue(torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.detach().contiguous().reshape(-1).view(torch.uint8)))
        with self.assertRaisesRegex(psd.InvalidArgument, "tensor 'c' has dtype complex64; versions have float64"):
            self.publisher(daemon).publish(2, {"c": torch.zeros(1, dtype=torch.complex64)})

    def test_parts_of_ranks(self):
        """Shares along any dimension, a replicated tensor, a tensor of one rank, and several parts of one tensor."""
        daemon = self.store()
        rows, columns, grid = (np.random.default_rng(i).integers(-100, 100, (6, 8)).astype(np.int8) for i in range(3))

        def give(rank):
            own = slice(3 * rank, 3 * rank + 3), slice(4 * rank, 4 * rank + 4)
            tensors = {"rows": psd.Part(rows[own[0]], shape=(6, 8), offset=(3 * rank, 0)),
                       "columns": psd.Part(columns[:, own[1]], shape=(6, 8), offset=(0, 4 * rank)),
                       "grid": [psd.Part(grid[own], shape=(6, 8), offset=(3 * rank, 4 * rank)),
                                psd.Part(grid[own[0], 4 - 4 * rank:8 - 4 * rank], shape=(6, 8), offset=(3 * rank, 4 - 4 * rank))],
                       "replicated": np.arange(5.0)}
            return self.publisher(daemon, rank, 2).publish(9, tensors | ({"alone": np.array(1)} if rank else {}), timeout=processes.WAIT_S)

        one, two = self.together(lambda: give(0), lambda: give(1))
        self.assertEqual((one.number, one.step), (two.number, two.step))
        follower = self.follower(daemon)
        follower.wait(timeout=processes.WAIT_S)
        self.assert_same(follower.tensors(), {"rows": rows, "columns": columns, "grid": grid, "replicated": np.arange(5.0), "alone": np.array(1)})
        self.assertEqual(give(1).number, one.number)  # again

    @unittest.skipIf(torch is None or not torch.distributed.is_available(), "needs torch.distributed")
    def test_dtensors(self):
        """Two processes of a gloo group give their shards of DTensors, sharded and replicated."""
        daemon = self.store()
        program = self.write("dtensors.py", """
import sys, torch, torch.distributed as dist, psd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, DTensor, Replicate, Shard, distribute_tensor
address, rank, place = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
full = torch.arange(35, dtype=torch.bfloat16).reshape(5, 7)
tensors = {"rows": distribute_tensor(full, mesh, [Shard(0)]), "columns": distribute_tensor(full, mesh, [Shard(1)]),
           "replicated": distribute_tensor(full, mesh, [Replicate()]), "short": distribute_tensor(full[:1], mesh, [Shard(0)])}
with psd.Publisher(address, rank=rank, world_size=2) as publisher:
    print(publisher.publish(1, tensors, timeout=120).number, flush=True)
    try:
        publisher.publish(2, {"sum": DTensor.from_local(full, mesh, [Partial()])})
    except psd.InvalidArgument as error:
        assert "are to be summed" in str(error), error
        print("refused", flush=True)
dist.destroy_process_group()
""")
        programs = [self.start_program(sys.executable, program, daemon.address, rank, self.folder / "group") for rank in range(2)]
        for each in programs:
            self.assert_ends(each)
            self.assertEqual(each.out.split(), ["1", "refused"])
        follower = self.follower(daemon)
        follower.wait(timeout=processes.WAIT_S)
        found, full = follower.torch_tensors(), torch.arange(35, dtype=torch.bfloat16).reshape(5, 7)
        for name, expected in {"rows": full, "columns": full, "replicated": full, "short": full[:1]}.items():
            self.assertTrue(torch.equal(found[name], expected), name)

    def test_steps_rise(self):
        daemon = self.store()
        publisher = self.publisher(daemon)
        first = publisher.publish(5, {"w": np.arange(4)})
        self.assertEqual(publisher.publish(5, {"w": np.arange(4)}).number, first.number)
        with self.assertRaisesRegex(psd.InvalidArgument, r"step 5 is published already, as version 1 with other bytes of tensor 'w' \[0:4\]"):
            publisher.publish(5, {"w": np.arange(1, 5)})
        with self.assertRaisesRegex(psd.InvalidArgument, "step 4 is not newer than step 5, of version 1: steps must rise"):
            publisher.publish(4, {"w": np.arange(4)})
        self.assertEqual(publisher.publish(9, {"other": np.arange(4)}).number, 2)

    def test_commands(self):
        daemon = self.store()
        self.publisher(daemon).publish(5, {"w": np.arange(4, dtype=np.int16)})
        run = {name: subprocess.run([processes.PSD, *arguments, "--server", daemon.address], capture_output=True, text=True,
                                    timeout=processes.WAIT_S, check=False, cwd=self.folder)
               for name, arguments in {"versions": ["versions"], "status": ["status"], "export": ["export", "--published", "0", "w.safetensors"],
                                       "follow": ["follow", "--into", "into", "--once"], "publish": ["publish"], "checkpoint": ["checkpoint"],
                                       "current": ["export", "m.safetensors"]}.items()}
        self.assertRegex(run["versions"].stdout, r"(?m)^ +1 +5 .* step ")
        self.assertIn("published  newest 1, 1 version of ", run["status"].stdout)
        self.assertIn(" serving ", run["status"].stdout)
        self.assertNotIn("policy", run["status"].stdout)
        self.assertIn(", step 5\n", run["follow"].stdout)
        for path in ("w.safetensors", "into/model.safetensors"):
            self.assertEqual((self.folder / path).read_bytes(), (self.folder / "versions/version-0000000001.safetensors").read_bytes())
        for name, words in {"publish": "they publish, with psd.Publisher", "checkpoint": "has no model", "current": "has no model"}.items():
            self.assertGreater(run[name].returncode, 0)
            self.assertEqual(len(run[name].stderr.splitlines()), 1, run[name].stderr)
            self.assertIn(words, run[name].stderr)
        client = self.client(daemon)
        with self.assertRaisesRegex(psd.InvalidArgument, "serves published versions and has no model"):
            client.join(test_python_follower.WIDE, test_python_follower.WIDE.zeros(), 0, 1)


class Disagreements(StoreTest):
    def test_between_ranks(self):
        daemon = self.store()
        ranks = [self.publisher(daemon, rank, 2) for rank in range(2)]

        def fail(step, error, message, first, second):
            outcomes = self.together(lambda: ranks[0].publish(step, first, 60), lambda: ranks[1].publish(step, second, 60))
            for outcome in outcomes:
                self.assertIsInstance(outcome, error, message)
                self.assertIn(message, str(outcome))

        whole, part = np.zeros((4, 4), np.int8), psd.Part(np.zeros((2, 4), np.int8), shape=(4, 4))
        fail(1, psd.InvalidArgument, "tensor 'x': 8 of its elements are given by no rank, the first at [2, 0]", {"x": part}, {"y": whole})
        fail(2, psd.InvalidArgument, "tensor 'x': rank 0 and rank 1 both give elements [0:2, 0:4]", {"x": part}, {"x": whole})
        fail(3, psd.InvalidArgument, "both give elements [0:4, 0:4], with different bytes", {"x": whole}, {"x": whole + 1})
        fail(4, psd.ModelMismatch, "rank 0 gives x I8[4,4], and rank 1 x I16[4,4]", {"x": whole}, {"x": whole.astype(np.int16)})
        fail(5, psd.InvalidArgument, "no rank gives a tensor", {}, {})
        self.assertEqual(daemon.status()["publish"]["abandoned"], 5)

    def test_of_the_world(self):
        daemon = self.store()
        waits = self.in_background(self.publisher(daemon, 0, 2).publish, 1, {"x": np.zeros(3)})
        daemon.until_status("rank 0 waits", lambda status: status["publish"]["assembling"] is not None)
        self.assertEqual(daemon.status()["publish"]["assembling"]["missing_ranks"], [1])
        with self.assertRaisesRegex(psd.WorldSizeMismatch, "with world size 3"):
            self.publisher(daemon, 1, 3).publish(1, {"x": np.zeros(3)})
        newer = self.publisher(daemon, 0, 2)
        again = self.in_background(newer.publish, 1, {"x": np.zeros(3)})
        replaced = waits()
        self.assertIsInstance(replaced, psd.RankTaken)
        self.assertIn("another publisher has taken over rank 0", str(replaced))
        self.assertEqual(self.publisher(daemon, 1, 2).publish(1, {"x": np.zeros(3)}).number, 1)
        self.assertEqual(again().number, 1)

    def test_missing_rank(self):
        daemon = self.store(publish__parts_timeout_seconds=1)
        with self.assertRaisesRegex(psd.DeadlineExceeded, r"ranks 0 and 2 of 3 have not begun it within 1 s \(publish.parts_timeout_seconds\)"):
            self.publisher(daemon, 1, 3).publish(7, {"x": np.zeros(3)})
        status = daemon.until_status("the step is abandoned", lambda status: status["publish"]["abandoned"] == 1)
        self.assertIsNone(status["publish"]["assembling"])
        events = processes.until("an event", lambda: [line for line in subprocess.run(
            [processes.PSD, "events", "--server", daemon.address], capture_output=True, text=True, timeout=processes.WAIT_S,
            check=True).stdout.splitlines() if "abandoned" in line])
        self.assertIn("ranks 0 and 2 of 3", events[0])

    def test_timeout_of_the_call(self):
        daemon = self.store()
        with self.assertRaisesRegex(psd.DeadlineExceeded, "step 1 was not published within"):
            self.publisher(daemon, 0, 2).publish(1, {"x": np.zeros(3)}, timeout=0.2)

    def test_a_newer_step(self):
        daemon = self.store()
        waits = self.in_background(self.publisher(daemon, 0, 2).publish, 1, {"x": np.zeros(3)})
        daemon.until_status("rank 0 waits", lambda status: status["publish"]["assembling"] is not None)
        ahead = self.in_background(self.publisher(daemon, 1, 2).publish, 2, {"x": np.zeros(3)})
        behind = waits()
        self.assertIsInstance(behind, psd.NotReady)
        self.assertIn("step 1 is abandoned: rank 1 has begun step 2", str(behind))
        self.assertEqual(self.publisher(daemon, 0, 2).publish(2, {"x": np.zeros(3)}).number, 1)
        self.assertEqual(ahead().number, 1)

    def test_roles(self):
        tokens = {role: self.make_token_file(role, role) for role in ("reader", "publisher", "trainer", "admin")}
        daemon = self.store(auth={"tokens": str(self.folder / "tokens")})
        for role in ("reader", "trainer"):
            with self.assertRaisesRegex(psd.Forbidden, f"this requires role publisher; '{role}' has role {role}"):
                self.publisher(daemon, token_file=tokens[role])
        self.assertEqual(self.publisher(daemon, token_file=tokens["publisher"]).publish(1, {"x": np.zeros(3)}).number, 1)
        self.assertEqual(self.publisher(daemon, token_file=tokens["admin"]).publish(2, {"x": np.zeros(3)}).number, 2)
        follower = self.follower(daemon, token_file=tokens["publisher"])
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 2)
        client = self.client(daemon, token_file=tokens["publisher"])
        with self.assertRaisesRegex(psd.Forbidden, "this requires role trainer"):
            client.join(test_python_follower.WIDE, test_python_follower.WIDE.zeros(), 0, 1)
        stop = subprocess.run([processes.PSD, "stop", "--server", daemon.address, "--token-file", str(tokens["publisher"])],
                              capture_output=True, text=True, timeout=processes.WAIT_S, check=False)
        self.assertIn("this requires role admin", stop.stderr)

    def test_a_daemon_that_trains(self):
        for daemon, words in ((self.publishing(), "this daemon publishes the model that it trains"),
                              (self.publishing(folder="other", publish=None), "has no `publish`")):
            with self.assertRaisesRegex(psd.InvalidArgument, words):
                self.publisher(daemon).publish(1, {"x": np.zeros(3)})

    def test_arguments(self):
        daemon = self.store()
        publisher = self.publisher(daemon)
        for tensors, words in (({"x": np.array(["text"])}, "tensor 'x' has dtype str128; versions have"), ({"": np.zeros(1)}, "has an empty name"),
                               ({"x": psd.Part(np.zeros(3), shape=(2,))}, "has 2 elements in dimension 0; its part is 3 of them"),
                               ({"x": psd.Part(np.zeros(3), shape=(3, 1))}, "has 1 dimensions, its shape 2"),
                               ({"x": psd.Part(np.zeros(3), dtype="F8")}, "is given with dtype 'F8'"),
                               ({"x": psd.Part(np.zeros(3), dtype="F32")}, "are not as large as those of F32")):
            with self.subTest(words), self.assertRaisesRegex(psd.InvalidArgument, words):
                publisher.publish(1, tensors)
        with self.assertRaisesRegex(psd.InvalidArgument, "rank 2 is not below the world size 2"):
            self.publisher(daemon, 2, 2)
        with self.assertRaisesRegex(TypeError, "did you mean 'world_size'"):
            psd.Publisher(daemon.address, worldsize=2)
        with self.assertRaisesRegex(TypeError, "expected a mapping"):
            publisher.publish(1, [np.zeros(3)])
        publisher.close()
        with self.assertRaisesRegex(psd.InvalidArgument, "this publisher is closed"):
            publisher.publish(1, {"x": np.zeros(3)})

    def test_limits(self):
        daemon = self.store(limits__version_bytes=1 << 20)
        with self.assertRaisesRegex(psd.Overloaded, r"limits.version_bytes \(1.0 MiB\) must admit three"):
            self.publisher(daemon).publish(1, {"x": np.zeros(1 << 20, np.uint8)})
        self.assertEqual(self.publisher(daemon).publish(2, {"x": np.zeros(1000, np.uint8)}).number, 1)

    def test_one_daemon_for_a_folder(self):
        self.store()
        second = self.start_psd("--config", CONFIG, "--listen", "tcp://127.0.0.1:0", "--set", f"publish.path={self.folder / 'versions'}")
        self.assert_fails(second, "versions")


class Deaths(StoreTest):
    MEGABYTES = 24

    def check_version(self, follower, step):
        """The version of that step is whole."""
        found = follower.tensors()
        self.assertEqual((int(found["step"]), follower.info.step), (step, step))
        np.testing.assert_array_equal(found["large"], large(step, self.MEGABYTES))

    def test_killed_publishers_and_daemons(self):
        """Publishers or the daemon are killed in the middle: a step that is published again becomes one whole version."""
        address = f"tcp://{processes.LOOPBACK}:0"
        daemon = self.store(listen=address)
        address = daemon.address
        follower = self.follower(address, retry_timeout=processes.WAIT_S)
        programs = [self.program(daemon, rank, 2, self.MEGABYTES) for rank in range(2)]
        choice, numbers = random.Random(5), []
        for step in range(1, 9):
            for program in programs:
                self.order(program, step)
            some = choice.randrange(1, self.MEGABYTES << 20)
            processes.until("bytes have arrived, or the step is complete",
                            lambda step=step, some=some: self.newest_step(daemon) == step or self.arrived(daemon) >= some)
            if step % 2:
                daemon.kill()
                daemon = self.store(listen=address)
            else:
                killed = choice.randrange(2)
                programs[killed].kill()
                programs[killed].wait()
                programs[killed] = self.program(daemon, killed, 2, self.MEGABYTES)
                self.order(programs[killed], step)
            answers = {self.answer(program) for program in programs}
            self.assertEqual(len(answers), 1, answers)
            number, published = answers.pop()
            self.assertEqual(published, step)
            numbers.append(number)
            self.assertEqual(follower.wait(at_least=number, timeout=processes.WAIT_S), number)
            self.check_version(follower, step)
            self.order(programs[step % 2], step)
            self.assertEqual(self.answer(programs[step % 2]), (number, step))  # again
        self.assertEqual(numbers, sorted(set(numbers)))
        steps = [version.step for version in follower.versions()]
        self.assertEqual(steps, sorted(set(steps)))  # no step twice

    @staticmethod
    def arrived(daemon):
        """Bytes of the step that is assembled."""
        assembling = daemon.status()["publish"]["assembling"]
        return assembling["arrived_bytes"] if assembling else 0

    @staticmethod
    def newest_step(daemon):
        return max((version["step"] for version in daemon.status()["publish"]["versions"]), default=0)

    def test_whole_versions_only(self):
        """While ranks publish, a follower sees whole versions."""
        daemon = self.store()
        programs = [self.program(daemon, rank, 2, 4) for rank in range(2)]
        for step in range(1, 21):
            for program in programs:
                self.order(program, step)
        follower, seen = self.follower(daemon), 0
        while seen < 20:
            seen = follower.wait(timeout=processes.WAIT_S)
            found = follower.tensors()
            self.assertEqual(int(found["step"]), follower.info.step)
            np.testing.assert_array_equal(found["large"], large(follower.info.step, 4))

    def test_a_broken_connection_continues(self):
        daemon = self.store()
        relay = cutter.Cutter(self, daemon.address, 1500, 2500)  # bytes of answers
        version = self.publisher(relay.address).publish(1, {"x": large(1, 8)}, timeout=processes.WAIT_S)
        self.assertEqual(version.number, 1)
        self.assertGreater(relay.connections, 1)
        self.assertLess(daemon.status()["publish"]["received_bytes"], 2 * (8 << 20))

    def test_interrupted(self):
        daemon = self.store()
        publisher = self.publisher(daemon, 0, 2)
        waits = self.in_background(publisher.publish, 1, {"x": np.zeros(3)})
        daemon.until_status("rank 0 waits", lambda status: status["publish"]["assembling"] is not None)
        threading.Thread(target=publisher.close, daemon=True).start()
        self.assertIsInstance(waits(), psd.Interrupted)

    def test_daemon_ends_in_order(self):
        daemon = self.store()
        self.publisher(daemon).publish(1, {"x": np.zeros(3)})
        waits = self.in_background(self.publisher(daemon, 0, 2, retry_timeout=0).publish, 2, {"x": np.zeros(3)})
        daemon.until_status("rank 0 waits", lambda status: status["publish"]["assembling"] is not None)
        self.assert_stops(daemon)
        self.assertIsInstance(waits(), (psd.ShuttingDown, psd.Unavailable))
        daemon = self.store()
        follower = self.follower(daemon)
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 1)


if __name__ == "__main__":
    processes.main()
