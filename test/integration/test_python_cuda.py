"""psd.torch and psd.Client with parameters on a GPU: the steps of a local optimizer, for each transport of values."""

import os
import pathlib
import subprocess
import sys
import threading
import unittest
import warnings

import processes
import torch
from torch import nn

import psd
import psd.torch

NEEDED = os.environ.get("PSD_REQUIRE_CUDA", "") not in ("", "0")
DEVICE = "cuda:0"
RATE = 0.05
SLEEP_CYCLES = 20_000_000  # of a kernel that only waits: about ten milliseconds
TOLERANCE = 1e-6  # of the largest parameter
PROCESS_S = 3 * processes.WAIT_S  # for a program that loads PyTorch and CUDA


def make_model(device=DEVICE):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 3, bias=False), nn.Linear(3, 1)).to(device)


def batches(count=20, size=32):
    generator = torch.Generator().manual_seed(2)
    for _ in range(count):
        x = torch.randn(size, 8, generator=generator)
        yield x.to(DEVICE), x.sum(1, keepdim=True).to(DEVICE)


def local_steps(model, momentum=0.0):
    return torch.optim.SGD(model.parameters(), RATE, momentum)


def train(model, optimizer, count=20, before_backward=lambda: None):
    for x, y in batches(count):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        before_backward()
        loss.backward()
        optimizer.step()


@unittest.skipUnless(torch.cuda.is_available() or NEEDED, "PyTorch finds no CUDA device")
class PythonCuda(processes.ProcessTest):
    @classmethod
    def setUpClass(cls):
        if not torch.cuda.is_available():
            raise AssertionError(f"PSD_REQUIRE_CUDA is set, and PyTorch {torch.__version__} (CUDA {torch.version.cuda}) finds no device")
        runtimes = sorted({line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if "libcudart" in line})
        print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name(0)}, capability {torch.cuda.get_device_capability(0)}, "
              f"runtime {runtimes}", file=sys.stderr)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def cuda_daemon(self, name="psd.sock", momentum=0.0, **settings):
        """A daemon on the GPU that is ready at a Unix socket, unless settings override that."""
        optimizer = f'{{"type":"sgd","lr":{RATE},"momentum":{momentum}}}'
        return self.daemon(**{"listen": (self.unix_address(name),), "policy": "locked", "optimizer": optimizer, "device": DEVICE,
                              **settings})

    def served(self, model, daemon, rank=0, world_size=1, **options):
        optimizer = psd.torch.Optimizer(model, daemon.address, rank=rank, world_size=world_size, **options)
        self.addCleanup(optimizer.client.close)
        return optimizer

    def ways(self):
        """Transports of values, by name: the daemon's settings for each, and the expected transport of pulls and
        pushes."""
        tcp = {"listen": ("tcp://127.0.0.1:0",)}
        return {"device memory": ({}, ("cuda", "cuda")), "several shards": ({"shards": 3, "limits__slice_bytes": 4096}, ("cuda", "cuda")),
                "daemon over TCP": (tcp, ("rpc", "rpc")), "daemon on the CPU": ({"device": "cpu"}, ("rpc", "shm")),
                "daemon on the CPU over TCP": ({"device": "cpu", **tcp}, ("rpc", "rpc"))}

    def assert_same(self, mine, other, tolerance=TOLERANCE, what=""):
        largest = max(float(parameter.detach().abs().max()) for parameter in other.parameters())
        worst = 0.0
        for (name, one), (_, two) in zip(mine.named_parameters(), other.named_parameters()):
            difference = float((one.detach().cpu() - two.detach().cpu()).abs().max()) / largest
            self.assertLessEqual(difference, tolerance, f"{what}: {name} differs by {difference:.3g} of {largest:.3g}:\n{one}\n{two}")
            worst = max(worst, difference)
        print(f"{self.id().rpartition('.')[2]}, {what}: differs by {worst:.3g} of the largest value", file=sys.stderr)

    def assert_in_place(self, model, optimizer):
        """Values and gradients are views of the optimizer's flat tensors on the GPU."""
        for key, parameter in model.named_parameters():
            place = optimizer.model.places[key].start * 4
            self.assertEqual(str(parameter.device), DEVICE, key)
            self.assertEqual(parameter.data_ptr(), optimizer._values.data_ptr() + place, f"the values of {key}")
            self.assertEqual(parameter.grad.data_ptr(), optimizer._gradients.data_ptr() + place, f"the gradient of {key}")

    def test_takes_the_steps_of_a_local_optimizer(self):
        local = make_model()
        train(local, local_steps(local))
        for index, (way, (settings, transports)) in enumerate(self.ways().items()):
            for overlap in (False, True):
                with self.subTest(way, overlap=overlap):
                    model = make_model()
                    daemon = self.cuda_daemon(f"{index}{overlap}.sock", **settings)
                    with self.served(model, daemon, overlap=overlap) as optimizer:
                        self.assertEqual((optimizer._info.pull_transport, optimizer._info.push_transport), transports,
                                         optimizer._info.device)
                        train(model, optimizer)
                        self.assert_in_place(model, optimizer)
                        self.assertEqual(optimizer.last_push.outcome, "applied")
                    self.assert_same(model, local, what=f"{way}, overlap {overlap}")
                    self.assert_stops(daemon)

    def test_momentum_and_clipping(self):
        model, local = make_model(), make_model()
        optimizer = self.served(model, self.cuda_daemon(momentum=0.9))
        for each, steps in ((model, optimizer), (local, local_steps(local, 0.9))):
            for x, y in batches():
                steps.zero_grad(set_to_none=True)
                for part_x, part_y in zip(x.chunk(2), y.chunk(2)):
                    (nn.functional.mse_loss(each(part_x), part_y) / 2).backward()
                nn.utils.clip_grad_norm_(each.parameters(), 0.1)
                steps.step()
        self.assert_same(model, local, 1e-5)

    def test_waits_for_the_stream_that_the_gradients_come_from(self):
        local = make_model()
        train(local, local_steps(local), 5)
        for index, (way, (settings, _)) in enumerate(self.ways().items()):
            for overlap in (False, True):
                with self.subTest(way, overlap=overlap):
                    model = make_model()
                    optimizer = self.served(model, self.cuda_daemon(f"{index}{overlap}.sock", **settings), overlap=overlap)
                    stream = torch.cuda.Stream()
                    stream.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(stream):  # the gradients are computed long after backward() has returned
                        train(model, optimizer, 5, lambda: torch.cuda._sleep(SLEEP_CYCLES))
                    self.assert_same(model, local, what=f"{way}, overlap {overlap}")

    def test_mixed_precision(self):
        for index, overlap in enumerate((False, True)):
            with self.subTest(overlap=overlap):
                model, local = make_model(), make_model()
                optimizer = self.served(model, self.cuda_daemon(f"{index}.sock"), overlap=overlap)
                for each, steps in ((model, optimizer), (local, local_steps(local))):
                    # The scaler changes gradients in its step(), which an overlapped push does not allow.
                    scaler = torch.amp.GradScaler("cuda", init_scale=256.0, enabled=not overlap)
                    for number, (x, y) in enumerate(batches()):
                        steps.zero_grad()
                        with torch.autocast("cuda", torch.float16):
                            loss = nn.functional.mse_loss(each(x).float(), y)
                        if number == 4 and not overlap:
                            loss = loss * float("inf")  # the scaler skips this step
                        scaler.scale(loss).backward()
                        scaler.step(steps)
                        scaler.update()
                    if not overlap:
                        self.assertLess(scaler.get_scale(), 256)
                self.assertEqual(optimizer.client.step, 20 if overlap else 19)  # a skipped step is not pushed
                # Half precision: a difference in the last bit of a parameter may be one of an activation's last bit.
                self.assert_same(model, local, 1e-3, f"overlap {overlap}")

    def test_recurrent_layers_keep_the_memory_that_cudnn_wants(self):
        class Recurrent(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(6)
                self.rnn, self.out = nn.LSTM(2, 16, batch_first=True), nn.Linear(16, 1)

            def forward(self, x):
                return self.out(self.rnn(x.reshape(len(x), 4, 2))[0][:, -1])

        model, local = Recurrent().to(DEVICE), Recurrent().to(DEVICE)
        optimizer = self.served(model, self.cuda_daemon())
        self.assertEqual(optimizer._info.pull_transport, "cuda")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            train(model, optimizer)
        self.assertEqual([str(warning.message) for warning in warned if "contiguous" in str(warning.message)], [])
        train(local, local_steps(local))
        self.assert_same(model, local, 1e-4)  # cuDNN may sum in another order

    def test_parameters_of_several_devices_go_by_way_of_host_memory(self):
        class Parts(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(3)
                self.near, self.far = nn.Linear(8, 16), nn.Linear(16, 1).to(DEVICE)

            def forward(self, x):
                return self.far(torch.tanh(self.near(x.cpu())).to(DEVICE))

        model, local = Parts(), Parts()
        optimizer = self.served(model, self.cuda_daemon())
        self.assertNotEqual(optimizer._info.pull_transport, "cuda")
        train(model, optimizer)
        train(local, local_steps(local))
        self.assert_same(model, local)

    def test_by_way_of_host_memory_where_the_program_says_so(self):
        model, local = make_model(), make_model()
        optimizer = self.served(model, self.cuda_daemon(), device=None)
        self.assertNotEqual(optimizer._info.pull_transport, "cuda")
        train(model, optimizer)
        train(local, local_steps(local))
        self.assert_same(model, local)

    def test_rows_of_tables(self):
        class Ratings(nn.Module):
            def __init__(self, user):
                super().__init__()
                torch.manual_seed(4)
                self.user, self.scale = user, nn.Linear(4, 1)

            def forward(self, users):
                return self.scale(self.user(users)).squeeze(1)

        model = Ratings(psd.torch.Embedding("user", 4, initial="normal", scale=0.5)).to(DEVICE)
        optimizer = self.served(model, self.cuda_daemon())
        self.assertEqual(optimizer._info.pull_transport, "cuda")
        local = Ratings(nn.Embedding(50, 4)).to(DEVICE)
        everybody = torch.arange(50, device=DEVICE)
        with torch.no_grad():
            local.user.weight.copy_(model.user(everybody))
        generator = torch.Generator().manual_seed(5)
        steps = local_steps(local)
        for _ in range(20):
            users, wanted = torch.randint(50, (16,), generator=generator).to(DEVICE), torch.randn(16, generator=generator).to(DEVICE)
            for each, stepping in ((model, optimizer), (local, steps)):
                stepping.zero_grad()
                nn.functional.mse_loss(each(users), wanted).backward()
                stepping.step()
        with torch.no_grad():
            torch.testing.assert_close(model.user(everybody), local.user.weight, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(model.scale.weight, local.scale.weight, rtol=1e-4, atol=1e-5)

    def test_trainers_in_rounds_take_the_steps_of_one(self):
        daemon = self.cuda_daemon(policy="sync", policy__start_trainers=2)
        script = self.write("train.py", f"""
import sys, torch, psd.torch
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import test_python_cuda as test
torch.backends.cuda.matmul.allow_tf32 = False
model = test.make_model()
with psd.torch.Optimizer(model) as optimizer:
    print("transports", optimizer._info.pull_transport, optimizer._info.push_transport, flush=True)
    for x, y in test.batches():
        optimizer.zero_grad()
        half = slice(optimizer.rank * 16, optimizer.rank * 16 + 16)
        test.nn.functional.mse_loss(model(x[half]), y[half]).backward()
        optimizer.step(samples=16)
    torch.save(model.state_dict(), sys.argv[1])
""")
        trainers = [subprocess.Popen([sys.executable, str(script), str(self.folder / f"{rank}.pt")], text=True, stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                     env={**os.environ, "PSD_SERVER": daemon.address, "RANK": str(rank), "WORLD_SIZE": "2"})
                    for rank in range(2)]
        for trainer in trainers:
            self.addCleanup(trainer.kill)
        outputs = [trainer.communicate(timeout=PROCESS_S)[0] for trainer in trainers]
        local = make_model()
        train(local, local_steps(local))
        for rank, (trainer, output) in enumerate(zip(trainers, outputs)):
            self.assertEqual(trainer.returncode, 0, output)
            self.assertIn("transports cuda cuda", output)
            model = make_model()
            model.load_state_dict(torch.load(self.folder / f"{rank}.pt"))
            self.assert_same(model, local, 1e-5, f"rank {rank}")  # means of halves are rounded differently

    def test_a_killed_daemon_resumes_from_its_log(self):
        for index, overlap in enumerate((False, True)):
            with self.subTest(overlap=overlap):
                settings = {"name": f"{index}.sock", "momentum": 0.9,
                            "durability": {"type": "log", "path": str(self.folder / f"log{index}")}}
                model, daemons = make_model(), [self.cuda_daemon(**settings)]
                optimizer = self.served(model, daemons[0], overlap=overlap)
                started = threading.Event()

                def kill_and_start(optimizer=optimizer, daemons=daemons, settings=settings, started=started):
                    try:
                        processes.until("some steps are made", lambda: optimizer.client.step >= 5)
                        daemons[0].kill()
                        daemons.append(self.cuda_daemon(**settings))
                    finally:
                        started.set()

                killer = threading.Thread(target=kill_and_start)
                killer.start()
                steps = after = 0
                while after < 5:
                    after += started.is_set()
                    train(model, optimizer, 1)  # the same batch repeatedly
                    steps += 1
                killer.join()
                self.assertEqual(len(daemons), 2, "the daemon did not come back")
                local = make_model()
                local_optimizer = local_steps(local, 0.9)
                for _ in range(steps):
                    train(local, local_optimizer, 1)
                self.assert_same(model, local, 1e-4, f"{steps} steps, overlap {overlap}")

    def test_a_daemon_without_a_model_gets_the_newest_values(self):
        model, local = make_model(), make_model()
        daemon = self.cuda_daemon()
        optimizer, steps = self.served(model, daemon), local_steps(local)
        for device in (DEVICE, "cpu", DEVICE):  # the CPU's shares no memory that a GPU can use
            train(model, optimizer, 3)
            train(local, steps, 3)
            daemon.kill()
            daemon = self.cuda_daemon(device=device)
        train(model, optimizer, 3)
        train(local, steps, 3)
        self.assert_same(model, local)

    def test_arrays_of_a_client(self):
        model = psd.Model("flat", {"w": (32,)})
        libraries = {"torch": lambda value: torch.full((32,), float(value), device=DEVICE)}
        try:
            import cupy
            libraries["cupy"] = lambda value: cupy.full(32, value, cupy.float32)
        except ImportError:
            print("cupy is not installed", file=sys.stderr)
        for library, full in libraries.items():
            with self.subTest(library):
                daemon = self.cuda_daemon(f"{library}.sock", optimizer='{"type":"sgd","lr":1.0}')
                with psd.Client(daemon.address, device=torch.device(DEVICE)) as client:
                    info = client.join(model, full(2), 0, 1)
                    self.assertEqual((info.pull_transport, info.push_transport), ("cuda", "cuda"))
                    values, gradient = full(0), full(-1)
                    client.pull(values)
                    self.assertEqual(values.tolist(), [2] * 32)
                    client.push(gradient)
                    push = client.partial_push(gradient)
                    push.ready(0, 32)
                    push.finish().wait()
                    client.begin_pull(values).wait()
                    self.assertEqual(values.tolist(), [4] * 32)
                    ones = torch.ones(32, device=DEVICE)
                    for wrong, message in ((torch.ones(32), "device cpu"), (ones.double(), "torch.float64"), (ones.reshape(2, 16), r"\[2, 16\]"),
                                           (torch.ones(64, device=DEVICE)[::2], "not contiguous"),
                                           (ones.clone().requires_grad_(), "require gradient")):
                        with self.assertRaisesRegex(TypeError, f"^the gradient of a push must be .* in the memory of cuda:0, not .*{message}"):
                            client.push(wrong)
                    with self.assertRaisesRegex(psd.InvalidArgument, "begins 4 bytes off"):
                        client.push(torch.ones(33, device=DEVICE)[1:])
                    self.assertEqual(torch.cuda.current_device(), 0)
        on_host = psd.Client(daemon.address)
        self.addCleanup(on_host.close)
        with self.assertRaisesRegex(TypeError, "in host memory, not Tensor, .*device cuda:0; psd.Client's `device` is for"):
            on_host.join(model, torch.ones(32, device=DEVICE), 0, 1)
        beyond = f"cuda:{torch.cuda.device_count()}"
        with self.assertRaisesRegex(psd.Error, f"{beyond}: cudaSetDevice: "):
            psd.Client(daemon.address, device=beyond)


if __name__ == "__main__":
    processes.main()
