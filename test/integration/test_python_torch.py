"""psd.torch.Optimizer: the same steps as a local optimizer, and other features that PyTorch programs use."""

import contextlib
import io
import logging
import os
import pickle
import signal
import subprocess
import sys
import unittest.mock

import ctrl_c
import processes
import served_models
import torch
from torch import nn
from torch.nn.utils import prune

import psd
import psd.torch


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def batches(count=20):
    generator = torch.Generator().manual_seed(2)
    for _ in range(count):
        x = torch.randn(32, 8, generator=generator)
        yield x, x.sum(1, keepdim=True)


def train(model, optimizer, clip=None, parts=1):
    for x, y in batches():
        optimizer.zero_grad()
        for some_x, some_y in zip(x.chunk(parts), y.chunk(parts)):
            (nn.functional.mse_loss(model(some_x), some_y) / parts).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


class PythonTorch(served_models.ServedTest):
    def test_overlap_takes_work_in_proportion_to_the_tensors(self):
        def work(count):
            """Number of Python operations in the backward pass and step of a model with that many tensors."""
            model = torch.nn.ParameterList([torch.zeros(1) for _ in range(count)])
            done = 0

            def trace(frame, event, _):
                nonlocal done
                frame.f_trace_opcodes = True
                done += event == "opcode"
                return trace

            with self.served(model, overlap=True) as optimizer:
                loss = torch.stack(list(model)).sum()
                sys.settrace(trace)
                try:
                    loss.backward()
                    optimizer.step()
                finally:
                    sys.settrace(None)
            return done

        self.assertLess(work(400), 6 * work(100))  # 4: linear; 16: quadratic

    def test_takes_the_steps_of_a_local_optimizer(self):
        for options, more in (({}, {}), ({"overlap": True}, {}), ({}, {"clip": 0.1}), ({}, {"parts": 4})):
            with self.subTest(**options, **more):
                mine, local = make_model(), make_model()
                with self.served(mine, **options) as optimizer:
                    train(mine, optimizer, **more)
                train(local, torch.optim.SGD(local.parameters(), 0.05, 0.9), **more)
                self.assert_same(mine, local)

    def test_flat_arrays_may_be_tensors_as_on_a_gpu(self):
        flat = unittest.mock.patch.object(psd.torch.Optimizer, "_zeros", lambda optimizer, _: torch.zeros(optimizer.model.size))
        with flat:
            self.test_takes_the_steps_of_a_local_optimizer()
            self.test_clipping_of_gradients_that_have_left_is_found()
        self.assertIsNone(psd.torch._cuda_device_of(dict(make_model().named_parameters())))

    def test_freed_memory_may_be_kept(self):
        program = """
import resource, sys, torch, psd.torch
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        arrays = [torch.ones(2 << 20) for _ in range(4)]  # 8 MiB each
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
if sys.argv[1] == "kept":
    assert psd.torch.keep_freed_memory()
faults()
print(faults())
"""

        def count(how):
            # A threshold that is set is not raised automatically by freed memory.
            done = subprocess.run([sys.executable, "-c", program, how], env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)},
                                  capture_output=True, text=True, timeout=processes.WAIT_S, check=True)
            return int(done.stdout)

        self.assertLess(10 * count("kept"), count("given back"))

    def test_gradients_may_be_set_to_none(self):
        mine, local = make_model(), make_model()
        optimizer = self.served(mine)
        mine.zero_grad(set_to_none=True)  # the module's own, which drops the views
        for model, steps in ((mine, optimizer), (local, torch.optim.SGD(local.parameters(), 0.05, 0.9))):
            for x, y in batches(5):
                nn.functional.mse_loss(model(x), y).backward()
                steps.step()
                model.zero_grad()
        self.assert_same(mine, local)

    def test_frozen_and_tied_parameters_and_those_without_a_gradient(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(3)
                self.a, self.b, self.frozen, self.unused = (nn.Linear(8, 8) for _ in range(4))
                self.b.weight = self.a.weight
                self.frozen.requires_grad_(False)

            def forward(self, x):
                return self.frozen(self.b(self.a(x))).mean(1, keepdim=True)

        mine, local = Tied(), Tied()
        optimizer = self.served(mine)
        self.assertEqual(list(optimizer.model.shapes), ["a.weight", "a.bias", "b.bias", "unused.weight", "unused.bias"])
        train(mine, optimizer)
        train(local, torch.optim.SGD([p for p in local.parameters() if p.requires_grad], 0.05, 0.9))
        self.assert_same(mine, local)
        self.assertEqual(mine.state_dict()["b.weight"].data_ptr(), mine.a.weight.data_ptr())

    def test_buffers_stay_each_trainers_own(self):
        daemon = self.daemon(policy="locked")
        one, other = (nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)) for _ in range(2))
        with self.assertLogs("psd", logging.INFO) as logs:
            optimizers = [psd.torch.Optimizer(model, daemon.address, rank=rank, world_size=2) for rank, model in enumerate((one, other))]
        self.assertIn("buffers stay each trainer's own: 1.running_mean, 1.running_var", logs.output[0])
        self.assertNotIn("1.running_mean", optimizers[0].model.shapes)
        self.assertIn("1.weight", optimizers[0].model.shapes)
        train(one, optimizers[0])
        train(other, optimizers[1])
        optimizers[0]._pull()
        self.assertTrue(torch.equal(one[1].weight, other[1].weight))
        self.assertFalse(torch.equal(one[1].running_mean, torch.zeros(4)))
        self.assertEqual((int(one[1].num_batches_tracked), int(other[1].num_batches_tracked)), (20, 20))
        for optimizer in optimizers:
            optimizer.close()

    def test_state_dict_has_the_newest_values_and_loads(self):
        mine, local = make_model(), make_model()
        optimizer = self.served(mine)
        train(mine, optimizer)
        train(local, torch.optim.SGD(local.parameters(), 0.05, 0.9))
        self.assertEqual(optimizer.state_dict(), {"state": {}, "param_groups": []})
        optimizer.load_state_dict(optimizer.state_dict())
        saved = io.BytesIO()
        torch.save(mine.state_dict(), saved)
        saved.seek(0)
        again = make_model()
        again.load_state_dict(torch.load(saved))
        self.assert_same(again, local)
        other = self.served(again)  # another daemon, which starts with the loaded values
        self.assert_same(again, local)
        self.assertTrue(other._info.initialized_model)

    def test_a_parameter_that_is_frozen_or_unfrozen_later_is_noticed(self):
        model = make_model()
        model[2].bias.requires_grad_(False)
        optimizer = self.served(model)
        train(model, optimizer)
        for parameter, message in ((model[0].weight, "parameter '0.weight' requires no gradient any more"),
                                   (model[2].bias, "parameter '2.bias' requires a gradient now")):
            parameter.requires_grad_(not parameter.requires_grad)
            before = optimizer.client.step
            with self.assertRaisesRegex(psd.InvalidArgument, message) as noticed:
                optimizer.step()
            self.assertNotIn("\n", str(noticed.exception))
            self.assertEqual(optimizer.client.step, before, "nothing was pushed")
            parameter.requires_grad_(not parameter.requires_grad)
            train(model, optimizer)

    def test_a_parameter_that_is_added_replaced_or_removed_later_is_noticed(self):
        def add(model):
            model.append(nn.Linear(1, 1))

        def replace(model):
            model[2].weight = nn.Parameter(torch.zeros(1, 16))

        def remove(model):
            del model[2]

        for change, message in ((add, "parameter '3.weight' was added to the module, and is not in the daemon's model"),
                                (replace, "parameter '2.weight' was replaced in the module"),
                                (remove, "parameter '2.weight' was removed in the module")):
            with self.subTest(message):
                model = make_model()
                optimizer = self.served(model)
                train(model, optimizer)
                change(model)
                with self.assertRaisesRegex(psd.InvalidArgument, f"^{message}: close.. this psd.torch.Optimizer") as noticed:
                    optimizer.step()
                self.assertNotIn("\n", str(noticed.exception))
                self.assertEqual(optimizer.client.step, 20, "nothing was pushed")
        model = make_model()
        optimizer = self.served(model)
        model.append(nn.Linear(1, 1).requires_grad_(False))
        prune.identity(model[0], "weight")  # another name of the same parameter
        train(model, optimizer)
        model[3].requires_grad_(True)
        with self.assertRaisesRegex(psd.InvalidArgument, "^parameter '3.weight' was added"):
            optimizer.step()

    def test_gradients_leave_while_the_backward_pass_runs(self):
        left = {}
        for overlap in (False, True):
            model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))
            daemon = self.daemon(policy="locked", shards=6)
            optimizer = psd.torch.Optimizer(model, daemon.address, rank=0, world_size=1, overlap=overlap)
            self.addCleanup(optimizer.client.close)

            def first(_, daemon=daemon, overlap=overlap):
                """The backward pass has reached the first layer, whose gradient is the last."""
                if overlap:
                    processes.until("the daemon has some", lambda: daemon.counter("push_bytes") > 0)
                left[overlap] = daemon.counter("push_bytes")

            hook = model[0].weight.register_hook(first)
            model(torch.ones(4, 256)).sum().backward()
            hook.remove()
            optimizer.step()
            self.assertLess(left[overlap], daemon.counter("push_bytes"))
        self.assertEqual(left[False], 0)
        self.assertGreater(left[True], 0)

    def test_tensors_go_without_a_copy(self):
        daemon = self.daemon(policy="locked", optimizer='{"type":"sgd","lr":1.0}')
        model = psd.Model("flat", {"w": (32,)})
        with psd.Client(daemon.address) as client:
            client.join(model, torch.full((32,), 2.0), 0, 1)
            values, gradient = torch.zeros(32), -torch.ones(32)
            client.pull(values)
            self.assertEqual(values.tolist(), [2] * 32)
            push = client.partial_push(gradient)
            gradient.fill_(-5)  # the tensor's own memory is sent
            push.ready(0, 32)
            push.finish().wait()
            client.pull(values)
            self.assertEqual(values.tolist(), [7] * 32)
            for tensor, message in ((torch.zeros(32, dtype=torch.float64), "torch.float64"), (torch.zeros(64)[::2], "not contiguous"),
                                    (torch.zeros(2, 16), r"\[2, 16\]")):
                with self.assertRaisesRegex(TypeError, f"^the gradient of a push must be .*{message}"):
                    client.push(tensor)

    def test_the_flat_array_is_the_parameters_memory(self):
        model = make_model()
        optimizer = self.served(model)
        x, y = next(batches())
        nn.functional.mse_loss(model(x), y).backward()
        for name, parameter in model.named_parameters():
            place = optimizer.model.places[name]
            self.assertEqual(parameter.data_ptr(), optimizer._values[place].ctypes.data, name)
            self.assertEqual(parameter.grad.data_ptr(), optimizer._gradients[place].ctypes.data, name)

    def test_the_scaler_of_mixed_precision(self):
        mine, local = make_model(), make_model()
        for model, optimizer in ((mine, self.served(mine)), (local, torch.optim.SGD(local.parameters(), 0.05, 0.9))):
            scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
            for x, y in batches():
                optimizer.zero_grad()
                scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
                scaler.step(optimizer)
                scaler.update()
        self.assert_same(mine, local)

    def test_rows_of_tables_take_the_steps_of_local_embeddings(self):
        class Ratings(nn.Module):
            def __init__(self, user, item):
                super().__init__()
                torch.manual_seed(4)
                self.user, self.item, self.scale = user, item, nn.Linear(4, 1)

            def forward(self, users, items):
                return self.scale(self.user(users) * self.item(items).sum(1)).squeeze(1)

        mine = Ratings(psd.torch.Embedding("user", 4, initial="normal", scale=0.5), psd.torch.Embedding("item", 4, scale=0.5, seed=2))
        with self.assertRaisesRegex(psd.InvalidArgument, "'user' has no daemon"):
            mine(torch.zeros(1, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64))
        optimizer = self.served(mine, optimizer='{"type":"sgd","lr":0.1}')
        local = Ratings(nn.Embedding(50, 4), nn.Embedding(50, 4))
        far = 1 << 40  # no machine has a table of that size
        with torch.no_grad():
            everybody = torch.arange(50)
            local.user.weight.copy_(mine.user(everybody * far))
            local.item.weight.copy_(mine.item(-everybody))
        steps = torch.optim.SGD(local.parameters(), 0.1)
        generator = torch.Generator().manual_seed(5)
        for _ in range(30):
            users = torch.randint(50, (16,), generator=generator)
            items = torch.randint(50, (16, 3), generator=generator)
            wanted = torch.randn(16, generator=generator)
            for model, each, ids in ((mine, optimizer, (users * far, -items)), (local, steps, (users, items))):
                each.zero_grad()
                nn.functional.mse_loss(model(*ids), wanted).backward()
                each.step()
        with torch.no_grad():
            torch.testing.assert_close(mine.user(everybody * far), local.user.weight, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(mine.item(-everybody), local.item.weight, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(mine.scale.weight, local.scale.weight, rtol=1e-4, atol=1e-5)
            self.assertEqual(mine.user(torch.zeros(2, 0, dtype=torch.int64)).shape, (2, 0, 4))
        with self.assertRaisesRegex(TypeError, "ids of table 'user' are integers, not torch.float32"):
            mine.user(torch.ones(1))

    def test_what_cannot_be_is_refused(self):
        model = make_model()
        optimizer = self.served(model, overlap=True)
        wrong = [
            (lambda: torch.optim.lr_scheduler.StepLR(optimizer, 1), psd.InvalidArgument, "configuration"),
            (lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]}), psd.InvalidArgument, "whole model"),
            (lambda: optimizer.load_state_dict({"state": {0: {}}}), psd.InvalidArgument, "other parameter groups"),
            (lambda: psd.torch.Optimizer(nn.Linear(2, 2).double(), "tcp://localhost:1"), psd.InvalidArgument, "'weight' is torch.float64"),
            (lambda: pickle.dumps(optimizer), TypeError, "cannot be pickled"),
            (lambda: psd.torch.Optimizer(nn.ReLU(), "tcp://localhost:1"), psd.InvalidArgument, "no parameter"),
            (lambda: psd.torch.Optimizer([nn.Parameter(torch.zeros(1))], "tcp://localhost:1"), psd.InvalidArgument, "or of a module.*not of a list"),
            (lambda: psd.torch.Optimizer(torch.optim.SGD([*nn.Linear(1, 1).parameters(), *nn.Linear(1, 1).parameters()]), "tcp://localhost:1"),
             psd.InvalidArgument, r"no module contains all.*model=.*torch\.nn\.ModuleList"),
            (lambda: psd.torch.Optimizer(model.parameters(), "tcp://localhost:1"), psd.InvalidArgument, "or of a module.*not of a generator"),
        ]
        for call, kind, message in wrong:
            with self.subTest(message), self.assertRaisesRegex(kind, message):
                call()
        x, y = next(batches())
        nn.functional.mse_loss(model(x), y).backward()
        with self.assertRaisesRegex(psd.Error, "overlap=False"):
            nn.functional.mse_loss(model(x), y).backward()
        with self.assertRaisesRegex(psd.InvalidArgument, "set optimizer.samples before the backward pass"):
            optimizer.step(samples=32)
        daemon = self.daemon(policy="local_sgd", policy__period="4")
        with self.assertRaisesRegex(psd.InvalidArgument, "local_sgd"):
            psd.torch.Optimizer(make_model(), daemon.address, rank=0, world_size=1)

    def test_a_model_of_another_type_is_refused_by_its_steps(self):
        for change in (nn.Module.double, nn.Module.half):
            model = make_model()
            optimizer = self.served(model)
            change(model)
            with self.assertRaisesRegex(psd.InvalidArgument, "parameter '0.weight' is torch.float(64|16) now, and f32 in the daemon's model"):
                optimizer.zero_grad()
            with self.assertRaisesRegex(psd.InvalidArgument, "parameter '0.weight' is torch.float(64|16) now, and f32 in the daemon's model"):
                optimizer.step()
            model.float()
            if change is nn.Module.half:  # rounds the values
                with self.assertRaisesRegex(psd.InvalidArgument, "'0.weight' was changed outside this optimizer .* the daemon's values are back"):
                    optimizer.step()
            train(model, optimizer)  # from the daemon's values, which no gradient has changed
            local = make_model()
            train(local, torch.optim.SGD(local.parameters(), 0.05, 0.9))
            self.assert_same(model, local)

    def test_clipping_of_gradients_that_have_left_is_found(self):
        model = make_model()
        optimizer = self.served(model, overlap=True)
        x, y = next(batches())
        nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        with self.assertRaisesRegex(psd.Error, "changed after it had been sent"):
            optimizer.step()

    def test_a_scaler_is_refused_where_gradients_leave_before_it_takes_its_scale_back(self):
        for unscales in (False, True):
            with self.subTest(unscales=unscales):
                model = make_model()
                with self.served(model, overlap=True) as optimizer:
                    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
                    x, y = next(batches())
                    scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
                    if unscales:
                        scaler.unscale_(optimizer)
                    with self.assertRaisesRegex(psd.InvalidArgument, "a scaler needs overlap=False"):
                        scaler.step(optimizer)
                    # Without the scaler the optimizer continues.
                    optimizer.zero_grad()
                    nn.functional.mse_loss(model(x), y).backward()
                    optimizer.step()
                    self.assertEqual(optimizer.last_push.outcome, "applied")

    def test_what_a_backward_pass_that_failed_had_sent_is_given_up(self):
        model, local = make_model(), make_model()
        daemon = self.daemon(policy="locked", optimizer='{"type":"sgd","lr":0.05,"momentum":0.9}', shards=1)  # no part of a push is applied alone
        optimizer = psd.torch.Optimizer(model, daemon.address, rank=0, world_size=1, overlap=True)
        self.addCleanup(optimizer.client.close)

        def fail(_):
            raise ZeroDivisionError

        x, y = next(batches())
        hook = next(model.parameters()).register_hook(fail)  # whose gradient is computed last
        with self.assertRaises(ZeroDivisionError):
            nn.functional.mse_loss(model(x), y).backward()
        hook.remove()
        train(model, optimizer)
        train(local, torch.optim.SGD(local.parameters(), 0.05, 0.9))
        self.assert_same(model, local)

    def test_ctrl_c_ends_a_step_that_waits(self):
        for overlap in (False, True):
            with self.subTest(overlap=overlap):
                model = make_model()
                optimizer = self.served(model, overlap=overlap, transport="rpc")
                self.processes[-1].signal(signal.SIGSTOP)

                def trains(model=model, optimizer=optimizer):
                    with optimizer:
                        train(model, optimizer)

                ctrl_c.check(self, f"step(), overlap={overlap}", trains, optimizer.client.close)

    def test_a_model_works_without_its_optimizer(self):
        for error in (None, KeyboardInterrupt):
            model = make_model()
            x, y = next(batches())
            with contextlib.suppress(KeyboardInterrupt), self.served(model, overlap=True) as optimizer:
                nn.functional.mse_loss(model(x), y).backward()  # sending has started
                if error:
                    raise error
            for _ in range(2):
                nn.functional.mse_loss(model(x), y).backward()  # nothing of it is sent
            with self.assertRaisesRegex(psd.InvalidArgument, "this client is closed"):
                optimizer.step()

    def test_trainers_of_torchrun_share_a_model(self):
        daemon = self.daemon(policy="sync", optimizer='{"type":"sgd","lr":0.05}')
        script = self.write("train.py", """
import torch, psd.torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Linear(8, 1)
with psd.torch.Optimizer(model) as optimizer:
    for step in range(100):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step(samples=16)
print("error", float((model.weight - 1).abs().max()))
""")
        run = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                              str(script)], env={**os.environ, "PSD_SERVER": daemon.address}, text=True,
                             capture_output=True, timeout=processes.WAIT_S * 3, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        errors = [float(line.split()[1]) for line in run.stdout.splitlines() if line.startswith("error")]
        self.assertEqual(len(errors), 2)
        self.assertLess(max(errors), 0.05)


if __name__ == "__main__":
    processes.main()
