"""psd.torch.Optimizer: values and settings that a program changes itself are detected, and wrapping and sharing keep
working."""

import copy
import io
import logging
import os
import unittest.mock

import processes
import served_models
import torch
from test_python_rows import torch_distributed
from test_python_torch import batches, make_model, train
from torch import nn
from torch.nn.utils import parametrizations

import psd
import psd.torch


def local_steps(model):
    return torch.optim.SGD(model.parameters(), 0.05, 0.9)


class Wrapper(torch.optim.Optimizer):
    """Like accelerate's: an optimizer that has none of the base's attributes."""

    def __init__(self, inner):
        self.inner = inner

    param_groups = property(lambda self: self.inner.param_groups)

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)

    def step(self, closure=None):
        return self.inner.step(closure)


class Overriding(psd.torch.Optimizer):
    def step(self, closure=None, samples=None):
        return super().step(closure, samples)


def with_attributes_of(optimizer):
    """Like Lightning's wrapper: of a class that inherits from the optimizer's, with a copy of its attributes."""
    wrapper = type("Wrapping" + type(optimizer).__name__, (type(optimizer),), {"__init__": lambda self: None})()
    wrapper.__dict__ = {key: value for key, value in optimizer.__dict__.items() if key != "step"}
    return wrapper


class PythonValues(served_models.ServedTest):
    def test_values_that_something_else_has_written_are_refused(self):
        def clip(parameter):
            with torch.no_grad():
                parameter.clamp_(-0.01, 0.01)

        def replace(parameter):
            parameter.data = torch.zeros_like(parameter)

        ways = {"clamp_": clip, "data.clamp_": lambda parameter: parameter.data.clamp_(-0.01, 0.01), "data =": replace,
                "init": nn.init.zeros_, "data.copy_": lambda parameter: parameter.data.copy_(torch.zeros_like(parameter)),
                "detach().mul_": lambda parameter: parameter.detach().mul_(2),
                "another optimizer": lambda parameter: torch.optim.SGD([parameter], 1.0).step()}
        for width in (16, 3000):  # compares all values, or a sample
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(8, width), nn.Linear(width, 1))
            optimizer = self.served(model, self.daemon(policy="locked", optimizer='{"type":"sgd","lr":0.001}'))
            x, y = next(batches())
            for way, change in ways.items():
                with self.subTest(way, width=width):
                    optimizer.zero_grad()
                    nn.functional.mse_loss(model(x), y).backward()
                    before, step = model[1].weight.detach().clone(), optimizer.client.step
                    change(model[1].weight)
                    with self.assertRaisesRegex(psd.InvalidArgument, "^parameter '1.weight' was changed outside this optimizer") as refused:
                        optimizer.step()
                    self.assertNotIn("\n", str(refused.exception))
                    self.assertTrue(torch.equal(model[1].weight, before), "the daemon's values are back")
                    self.assertEqual(optimizer.client.step, step, "nothing was pushed")
                    optimizer.step()

    def test_values_that_are_written_while_gradients_leave_are_refused(self):
        model = make_model()
        optimizer = self.served(model, self.daemon(policy="locked", optimizer=served_models.SGD, shards=1), overlap=True)
        x, y = next(batches())
        nn.functional.mse_loss(model(x), y).backward()
        nn.init.zeros_(model[2].weight)
        with self.assertRaisesRegex(psd.InvalidArgument, "^parameter '2.weight' was changed outside this optimizer"):
            optimizer.step()
        train(model, optimizer)

    def test_max_norm_and_another_shape_are_refused(self):
        model = nn.Embedding(4, 2, max_norm=1.0)
        nn.init.constant_(model.weight, 3.0)
        optimizer = self.served(model)
        model(torch.tensor([0, 1])).sum().backward()
        with self.assertRaisesRegex(psd.InvalidArgument, "^parameter 'weight' was changed outside this optimizer.*max_norm"):
            optimizer.step()
        model.weight.data = torch.zeros(5, 2)
        with self.assertRaisesRegex(psd.InvalidArgument, r"^parameter 'weight' has shape \(5, 2\) now, and \(4, 2\) in the daemon's model"):
            optimizer.step()

    def test_a_write_through_data_is_found_within_some_steps_wherever_it_is(self):
        model = nn.Linear(1 << 15, 1)
        optimizer = self.served(model)
        steps = 0
        with self.assertRaisesRegex(psd.InvalidArgument, "^parameter 'weight' was changed"):
            while steps < 100:
                optimizer.zero_grad()
                model.weight.data[0, 12345] = 7
                optimizer.step()
                steps += 1
        self.assertLessEqual(steps, model.weight.numel() // 1024)

    def test_what_frameworks_do_to_parameters_is_no_change(self):
        class Norms(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(5)
                self.first = parametrizations.spectral_norm(nn.Linear(8, 16))
                self.second = parametrizations.weight_norm(nn.Linear(16, 16))
                self.norm, self.last = nn.BatchNorm1d(16), nn.Linear(16, 1)

            def forward(self, x):
                return self.last(self.norm(torch.tanh(self.second(self.first(x)))))

        mine, local = Norms(), Norms()
        optimizer = self.served(mine)
        average = torch.optim.swa_utils.AveragedModel(mine)
        with torch_distributed():
            for model, steps in ((mine, optimizer), (local, local_steps(local))):
                wrapped = nn.parallel.DistributedDataParallel(model)  # writes the same values
                scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
                for number, (x, y) in enumerate(batches(12)):
                    steps.zero_grad()
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = nn.functional.mse_loss(wrapped(x).float(), y)
                    scaler.scale(loss).backward()
                    scaler.step(steps)
                    scaler.update()
                    average.update_parameters(mine)
                    if number == 6:
                        model.double().float()  # other memory with the same values
        self.assertEqual(optimizer.client.step, 12)
        for (name, one), (_, two) in zip(mine.named_parameters(), local.named_parameters()):
            torch.testing.assert_close(one, two, rtol=2e-2, atol=2e-2, msg=lambda text, name=name: f"{name}: {text}")

    def test_pulls_and_zero_grad_count_as_writes_for_autograd(self):
        for tensors in (False, True):
            flat = unittest.mock.patch.object(psd.torch.Optimizer, "_zeros", lambda optimizer, _: torch.zeros(optimizer.model.size))
            with self.subTest(tensors_as_on_a_gpu=tensors), flat if tensors else unittest.mock.MagicMock():
                model = make_model()
                optimizer = self.served(model)
                x, y = next(batches())
                first, second = (nn.functional.mse_loss(model(x), y) for _ in range(2))
                first.backward()
                optimizer.step()
                with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                    second.backward()
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                factor = torch.ones((), requires_grad=True)
                product = (factor * model[0].weight.grad).square().sum()
                optimizer.zero_grad()
                with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                    product.backward()

    def test_numbers_of_the_optimizer_are_refused_however_they_are_asked_for(self):
        model = make_model()
        optimizer = self.served(model)
        group = optimizer.param_groups[0]

        def merge(target):
            target |= {"lr": 0.1}

        scheduler = torch.optim.lr_scheduler
        for what in (lambda: group["lr"], lambda: group.__setitem__("lr", 0.1), lambda: group.update(lr=0.1), lambda: group.get("lr"),
                     lambda: group.setdefault("weight_decay", 0.0), lambda: group.get("momentum", 0.9), lambda: merge(group),
                     lambda: group.pop("lr", None), lambda: group | {"lr": 0.1}, lambda: group.__delitem__("lr"),
                     lambda: optimizer.defaults.pop("lr", None), lambda: optimizer.defaults | {"lr": 0.1},
                     lambda: optimizer.defaults["lr"], lambda: optimizer.defaults.get("lr"), lambda: optimizer.defaults.update(lr=1),
                     lambda: "lr" in optimizer.defaults, lambda: merge(optimizer.defaults), lambda: scheduler.StepLR(optimizer, 1),
                     lambda: scheduler.OneCycleLR(optimizer, 0.1, 10), lambda: scheduler.ReduceLROnPlateau(optimizer),
                     lambda: torch.optim.swa_utils.SWALR(optimizer, 0.1), lambda: scheduler.LambdaLR(optimizer, lambda step: 1.0),
                     lambda: psd.torch.Optimizer(make_model(), "tcp://localhost:1", lr=0.1)):
            with self.assertRaisesRegex(psd.InvalidArgument, "configuration") as refused:
                what()
            self.assertNotIn("\n", str(refused.exception))
        for change in (lambda: group.update(params=[model[0].weight]), lambda: group.pop("params"), group.clear, group.popitem):
            with self.assertRaisesRegex(psd.InvalidArgument, "parameters of a psd.torch.Optimizer are those of the daemon's model"):
                change()
        group["params"] = list(group["params"])
        for change, back in ((group["params"].pop, lambda last: group["params"].append(last)),
                             (lambda: optimizer.param_groups.append({"params": [nn.Parameter(torch.ones(1))], "lr": 0.1}),
                              lambda _: optimizer.param_groups.pop())):
            changed = change()
            with self.assertRaisesRegex(psd.InvalidArgument, "param_groups was replaced, or its parameters are others"):
                optimizer.step()
            back(changed)
        optimizer.param_groups = [{"params": [], "lr": 0.1}]
        with self.assertRaisesRegex(psd.InvalidArgument, "param_groups was replaced"):
            optimizer.step()
        optimizer.param_groups = [group]
        train(model, optimizer)

    def test_samples_that_are_none_are_refused_at_once(self):
        optimizer = self.served(make_model())
        for samples, error in ((-1, psd.InvalidArgument), (1.5, TypeError), ("32", TypeError)):
            with self.assertRaisesRegex(error, "^samples is .*; expected a whole number"):
                psd.torch.Optimizer(make_model(), "tcp://localhost:1", samples=samples)
            with self.assertRaisesRegex(error, "^samples is .*; expected a whole number"):
                optimizer.samples = samples
        self.assertEqual(optimizer.samples, 1)

    def test_a_step_counts_once_however_the_optimizer_is_wrapped(self):
        local = make_model()
        train(local, local_steps(local))
        for overlap in (False, True):
            for kind, wrap in ((psd.torch.Optimizer, Wrapper), (psd.torch.Optimizer, with_attributes_of), (Overriding, lambda inner: inner)):
                with self.subTest(kind=kind, wrap=wrap, overlap=overlap):
                    model = make_model()
                    optimizer = self.served(model, kind=kind, overlap=overlap)
                    wrapped = wrap(optimizer)
                    train(model, wrapped)
                    self.assertEqual(optimizer.client.step, 20)
                    self.assertEqual(optimizer.last_push.outcome, "applied")
                    self.assert_same(model, local)

    def test_a_compiled_step_takes_the_steps_of_a_local_optimizer(self):
        class Looks(nn.Module):
            def __init__(self):
                super().__init__()
                self.rows, self.body = psd.torch.Embedding("e", 8, initial="zero"), make_model()

            def forward(self, x):
                return self.body(x + self.rows(torch.zeros(len(x), dtype=torch.int64)))

        models = [Looks() for _ in range(2)]
        for index, model in enumerate(models):
            optimizer = self.served(model)

            def step(x, y, model=model, optimizer=optimizer):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                return loss

            compiled = step if index else torch.compile(step, backend="eager")
            for x, y in batches(4):
                compiled(x, y)
            self.assertEqual(optimizer.client.step, 4)
        self.assert_same(models[0].body, models[1].body)

    def test_memory_formats_and_shared_memory_stay(self):
        def net():
            torch.manual_seed(6)
            return nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 1))

        images = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(7))
        for kind in ("channels_last", "shared"):
            with self.subTest(kind):
                mine, local = net(), net()
                for model in (mine, local):
                    model.to(memory_format=torch.channels_last) if kind == "channels_last" else model.share_memory()
                pointers = [parameter.data_ptr() for parameter in mine.parameters()]
                optimizer = self.served(mine)
                self.assertEqual(mine[0].weight.stride(), local[0].weight.stride())
                self.assertEqual(mine[2].weight.is_shared(), kind == "shared")
                if kind == "shared":
                    self.assertEqual([parameter.data_ptr() for parameter in mine.parameters()], pointers)
                for model, steps in ((mine, optimizer), (local, local_steps(local))):
                    for _ in range(4):
                        steps.zero_grad()
                        model(images).square().mean().backward()
                        steps.step()
                self.assert_same(mine, local)
                self.assertEqual(mine[0].weight.stride(), local[0].weight.stride())
                if kind == "channels_last":
                    mine[0].weight.data.zero_()
                    with self.assertRaisesRegex(psd.InvalidArgument, "'0.weight' was changed"):
                        optimizer.step()

    def test_processes_that_train_a_model_in_shared_memory_train_that_of_the_parent(self):
        daemon = self.daemon(policy="hogwild", optimizer='{"type":"sgd","lr":0.02}')
        model = nn.Linear(8, 1)
        model.share_memory()
        children = [torch.multiprocessing.get_context("spawn").Process(target=train_shared, args=(model, daemon.address, rank))
                    for rank in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join(processes.WAIT_S * 3)
            self.assertEqual(child.exitcode, 0)
        self.assertLess(float((model.weight.detach() - 1).abs().max()), 0.05)

    def test_a_constructor_that_fails_leaves_everything_as_it_was(self):
        class Fails(psd.torch.Optimizer):
            def _note(self):
                raise ZeroDivisionError

        daemon = self.daemon(policy="locked")
        rounds = self.daemon(policy="local_sgd", policy__period="4")
        model = nn.Sequential(psd.torch.Embedding("e", 8), make_model(), psd.torch.Embedding("e", 8))
        tensors = dict(model.named_parameters())
        for parameter in model[1].parameters():
            parameter.grad = torch.ones_like(parameter)
        memory = {name: (parameter.data_ptr(), parameter.grad) for name, parameter in tensors.items()}
        state = copy.copy(model.__dict__)
        for kind, address, options, error in ((psd.torch.Optimizer, rounds.address, {}, psd.InvalidArgument),
                                              (Fails, daemon.address, {}, ZeroDivisionError),
                                              (psd.torch.Optimizer, daemon.address, {"retry_timout": 3}, TypeError)):
            with self.subTest(kind=kind, options=options):
                with self.assertRaises(error):
                    kind(model, address, rank=0, world_size=1, **options)
                self.assertEqual(list(dict(model.named_parameters())), list(tensors))
                for name, parameter in model.named_parameters():
                    self.assertIs(parameter, tensors[name])
                    self.assertEqual((parameter.data_ptr(), parameter.grad), memory[name])
                self.assertEqual(model.__dict__.keys(), state.keys())
                with self.assertRaisesRegex(psd.InvalidArgument, "has no daemon"):
                    model[0](torch.zeros(1, dtype=torch.int64))
        for each in (daemon, rounds):
            each.until_status("the trainer has left", lambda status: not status["trainers"])
            self.assertEqual(each.status()["trainers_lost"], 0)
        self.served(model, daemon).close()  # it can still be started

    def test_a_parameter_is_served_once_and_shares_no_memory(self):
        model = make_model()
        optimizer = self.served(model)
        with self.assertRaisesRegex(psd.InvalidArgument, r"'0.weight' is served by a psd.torch.Optimizer already: close\(\) that first"):
            self.served(model)
        child = os.fork()
        if child == 0:  # may serve what it inherited from its parent
            try:
                psd._served.check_free(dict(model.named_parameters()))
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        optimizer.close()
        tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        for requires_grad in (True, False):
            tied[1].weight = nn.Parameter(tied[0].weight.data, requires_grad)
            with self.assertRaisesRegex(psd.InvalidArgument, "'[01].weight' and '[01].weight' share memory"):
                self.served(tied)
        self.served(model).close()

    def test_a_model_at_the_daemon_is_reported(self):
        daemon = self.daemon(policy="locked", optimizer=served_models.SGD)
        with self.assertNoLogs("psd", logging.WARNING):
            model = make_model()
            with self.served(model, daemon) as optimizer:
                train(model, optimizer)
        with self.assertLogs("psd", logging.INFO) as logs:
            self.served(make_model(), daemon).close()
        self.assertEqual([record.getMessage() for record in logs.records],
                         ["the daemon has a model already, at version 20: its values replace those of the module"])
        self.assertEqual(logs.records[0].levelno, logging.WARNING)
        with self.assertNoLogs("psd", logging.INFO):
            self.served(model, daemon).close()  # with the same values

    def test_a_served_model_is_saved_as_any(self):
        for overlap in (False, True):
            model = make_model()
            self.served(model, overlap=overlap)
            saved = io.BytesIO()
            torch.save(model, saved)
            saved.seek(0)
            with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.Tanh]):
                self.assert_same(torch.load(saved), model)
            self.assertNotIn(b"psd", saved.getvalue())

    def test_what_cannot_be_served_is_refused_by_its_name(self):
        for model, message in ((nn.LazyLinear(2), "parameter 'weight' has no shape yet"),
                               (nn.Linear(2, 2, device="meta"), "parameter 'weight' has no memory")):
            with self.assertRaisesRegex(psd.InvalidArgument, message):
                psd.torch.Optimizer(model, "tcp://localhost:1")


def train_shared(model, address, rank):
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    with psd.torch.Optimizer(model, address, rank=rank, world_size=2) as optimizer:
        for _ in range(150):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()


if __name__ == "__main__":
    processes.main()
