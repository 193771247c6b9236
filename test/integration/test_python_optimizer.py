"""psd.torch.Optimizer of a torch.optim optimizer: the same steps as that optimizer takes, with its schedulers, under
every transport and after every restart."""

import io
import logging
import threading
import unittest
import warnings

import etcd
import processes
import served_models
import torch
from served_models import TOLERANCE
from torch import nn
from torch.optim import lr_scheduler

import psd
import psd.torch

STEPS = 30


def make_net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 1))


def two_groups(model, decay=0.1, **more):
    """Weight decay for matrices only: the groups' parameters alternate in the module."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    return [{"params": matrices, "weight_decay": decay, **more}, {"params": others, "weight_decay": 0.0}]


def adamw(model, **options):
    return torch.optim.AdamW(two_groups(model), **{"lr": 1e-2, **options})


def batches(steps=STEPS, seed=2):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(16, 8, generator=generator)
        yield x, x.sum(1, keepdim=True)


def train(model, optimizer, after=None, steps=STEPS, seed=2):
    """`after`: called with each loss, as a scheduler's step() is."""
    for x, y in batches(steps, seed):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if after is not None:
            after(float(loss.detach()))


def bits(model):
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).view(torch.int32).clone()


def schedules():
    """Each makes what is called with the loss after a step."""
    def step_of(make):
        def of(optimizer):
            scheduler = make(optimizer)
            return lambda _: scheduler.step()
        return of

    def sequential(optimizer):
        return lr_scheduler.SequentialLR(optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10),
                                                     lr_scheduler.CosineAnnealingLR(optimizer, 20)], milestones=[10])

    def plateau(optimizer):
        return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.2).step

    def by_hand(optimizer):
        done = 0

        def step(_):
            nonlocal done
            done += 1
            for group in optimizer.param_groups:
                group["lr"] = 1e-2 / (1 + done)
        return step

    return {"LambdaLR from 0": step_of(lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))),
            "SequentialLR": step_of(sequential),
            "OneCycleLR": step_of(lambda optimizer: lr_scheduler.OneCycleLR(optimizer, [0.02, 0.01], total_steps=STEPS + 1)),
            "StepLR": step_of(lambda optimizer: lr_scheduler.StepLR(optimizer, 7, 0.3)),
            "ReduceLROnPlateau": plateau,
            "by hand": by_hand}


class PythonOptimizer(served_models.ServedTest):
    def setUp(self):
        self.enterContext(warnings.catch_warnings())
        warnings.simplefilter("error")  # such as that of a scheduler that sees no step()

    def compare(self, make, schedule=None, daemon=None, tolerance=TOLERANCE, **options):
        """Trains a model with the daemon, and one locally. `make`: the optimizer of a model."""
        mine, local = make_net(), make_net()
        optimizer = self.of(make(mine), daemon, **options)
        for model, each in ((mine, optimizer), (local, make(local))):
            train(model, each, schedule and schedule(each))
        self.assert_close(mine, local, tolerance)
        optimizer.close()
        return optimizer

    def assert_refused(self, message, make, kind=psd.InvalidArgument):
        with self.assertRaisesRegex(kind, message) as refused:
            make()
        self.assertNotIn("\n", str(refused.exception))
        return str(refused.exception)

    # --- The steps ---------------------------------------------------------------------------------------

    def test_takes_the_steps_of_each_optimizer(self):
        optim = torch.optim
        for name, make in {
                "SGD": lambda groups: optim.SGD(groups, 0.05),
                "SGD, Nesterov": lambda groups: optim.SGD(groups, 0.02, 0.9, nesterov=True),
                "SGD, dampening": lambda groups: optim.SGD(groups, 0.05, 0.9, dampening=0.5),
                "Adam": lambda groups: optim.Adam(groups, 1e-2, betas=(0.8, 0.95), eps=1e-6),
                "Adam, decoupled": lambda groups: optim.Adam(groups, 1e-2, decoupled_weight_decay=True),
                "AdamW": lambda groups: optim.AdamW(groups, 1e-2, amsgrad=True),
                "Adagrad": lambda groups: optim.Adagrad(groups, 0.1, lr_decay=0.05, initial_accumulator_value=0.1),
                "RMSprop": lambda groups: optim.RMSprop(groups, 1e-3, momentum=0.9, centered=True),
                "RMSprop, plain": lambda groups: optim.RMSprop(groups, 1e-3, alpha=0.9),
                "Adadelta": lambda groups: optim.Adadelta(groups, 0.5, rho=0.8)}.items():
            with self.subTest(name):
                self.compare(lambda model, make=make: make(two_groups(model)))

    def test_follows_schedulers(self):
        for name, schedule in schedules().items():
            with self.subTest(name):
                self.compare(adamw, schedule)
        self.compare(lambda model: torch.optim.SGD(two_groups(model), 0.02, 0.9), schedules()["OneCycleLR"])

    def test_a_rate_may_be_a_tensor(self):
        self.compare(lambda model: torch.optim.Adam(two_groups(model), lr=torch.tensor(1e-2), foreach=False), schedules()["StepLR"])

    def test_a_rate_for_each_of_50_layers(self):
        def make_layers():
            torch.manual_seed(3)
            return nn.Sequential(*(nn.Linear(4, 4) for _ in range(50)))

        def layerwise(model):
            return torch.optim.SGD([{"params": layer.parameters(), "lr": 0.1 * 0.9**number} for number, layer in enumerate(reversed(model))],
                                   momentum=0.9)

        mine, local = make_layers(), make_layers()
        daemon = self.open_daemon(shards=3)
        optimizer = self.of(layerwise(mine), daemon)
        for model, each in ((mine, optimizer), (local, layerwise(local))):
            for step in range(10):
                each.zero_grad()
                model(torch.full((2, 4), 1.0 + step)).square().mean().backward()
                each.step()
        self.assert_close(mine, local)
        self.assertEqual(optimizer._info.shards, 3)

    def test_every_transport(self):
        for listen, options in ((self.unix_address(), {}), (self.unix_address("rpc.sock"), {"transport": "rpc"}),
                                ("tcp://127.0.0.1:0", {"chunk": 4096, "window": 2, "connections": 2}),
                                ("tcp://127.0.0.1:0", {"overlap": True}), (self.unix_address("overlap.sock"), {"overlap": True})):
            with self.subTest(listen.split(":")[0], **options):
                self.compare(adamw, schedules()["StepLR"], self.open_daemon(listen=(listen,), shards=2), **options)

    def test_codecs(self):
        self.compare(adamw, schedules()["StepLR"], tolerance=0.05, codec="bf16")
        self.compare(lambda model: torch.optim.SGD(two_groups(model, 0.0), 0.05, 0.9), codec="topk:fraction=1")
        model = make_net()
        self.assert_refused("codec 'dgc.* has a momentum, which cannot be combined with",
                            lambda: self.of(torch.optim.SGD(model.parameters(), 0.1, 0.9), codec="dgc"))
        self.of(torch.optim.SGD(model.parameters(), 0.1), codec="dgc")

    def test_two_daemons_are_one(self):
        addresses = [self.unix_address(f"{index}.sock") for index in range(2)]
        several = [self.open_daemon(listen=(address,), daemons=addresses, index=index) for index, address in enumerate(addresses)]
        found = []
        for daemon in (several[0], self.open_daemon()):
            model = make_net()
            optimizer = self.of(adamw(model), daemon)
            train(model, optimizer, schedules()["OneCycleLR"](optimizer))
            found.append(bits(model))
        self.assertTrue(torch.equal(*found))

    def test_the_rows_of_tables_follow_the_scheduler(self):
        class Ratings(nn.Module):
            def __init__(self, user):
                super().__init__()
                torch.manual_seed(4)
                self.user, self.scale = user, nn.Linear(4, 1)

            def forward(self, ids):
                return self.scale(self.user(ids)).squeeze(1)

        def make(model):
            return torch.optim.SGD([{"params": model.scale.parameters(), "lr": 0.1}, {"params": model.user.parameters(), "lr": 0.5}])

        mine, local = Ratings(psd.torch.Embedding("user", 4, scale=0.5)), Ratings(nn.Embedding(20, 4))
        optimizer = self.of(make(mine))
        with torch.no_grad():
            local.user.weight.copy_(mine.user(torch.arange(20)))
        for model, each in ((mine, optimizer), (local, make(local))):
            scheduler = lr_scheduler.StepLR(each, 5, 0.3)
            generator = torch.Generator().manual_seed(5)
            for _ in range(STEPS):
                ids = torch.randint(20, (8,), generator=generator)
                each.zero_grad()
                (model(ids) - ids / 10).square().mean().backward()
                each.step()
                scheduler.step()
        with torch.no_grad():
            self.assertLessEqual(float((mine.user(torch.arange(20)) - local.user.weight).abs().max()), TOLERANCE)
        self.assert_close(mine.scale, local.scale)

    def test_tables_belong_to_the_optimizer(self):
        model = nn.ModuleDict({"user": psd.torch.Embedding("user", 4), "scale": nn.Linear(4, 1)})
        self.assert_refused("table 'user'.*not in the optimizer",
                            lambda: self.of(torch.optim.SGD(model["scale"].parameters(), 0.1), model=model))

    # --- Parameters without a gradient ---------------------------------------------------------------------

    def test_parameters_without_a_gradient_stay(self):
        class Unused(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(3)
                self.used, self.sometimes, self.unused, self.dead = (nn.Linear(8, 8) for _ in range(4))

            def forward(self, x, both):
                y = self.used(x) + torch.relu(self.dead(x) - 1e6)  # gradients of zero
                return (y + self.sometimes(x) if both else y).mean(1, keepdim=True)

        def run(model, optimizer, clip, set_to_none):
            for step, (x, y) in enumerate(batches()):
                optimizer.zero_grad(set_to_none=set_to_none)
                nn.functional.mse_loss(model(x, step % 3 == 0), y).backward()
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()

        for clip, set_to_none in ((False, True), (True, True), (False, False)):
            with self.subTest(clip=clip, set_to_none=set_to_none):
                mine, local = Unused(), Unused()
                before = mine.unused.weight.detach().clone()
                optimizer = self.of(torch.optim.SGD(mine.parameters(), 0.05, 0.9, weight_decay=0.1))
                run(mine, optimizer, clip, set_to_none)
                run(local, torch.optim.SGD(local.parameters(), 0.05, 0.9, weight_decay=0.1), clip, set_to_none)
                self.assert_close(mine, local)
                self.assertTrue(torch.equal(mine.unused.weight, before))

    def test_a_gradient_that_the_program_writes_counts(self):
        models = []
        for wrap in (self.of, lambda optimizer: optimizer):
            model = nn.ParameterList([torch.ones(3), torch.ones(3), torch.ones(3)])
            optimizer = wrap(torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.5))
            for _ in range(2):
                optimizer.zero_grad()
                model[0].grad = torch.full((3,), 2.0)
                if model[1].grad is None:
                    model[1].grad = torch.zeros(3)
                model[1].grad += 1
                optimizer.step()
            models.append(model)
        self.assert_close(*models)

    # --- Several trainers ------------------------------------------------------------------------------------

    def both(self, daemon, make, work, **options):
        """Two trainers, each with a model and a thread of its own; what each raised."""
        made = [make_net() for _ in range(2)]
        optimizers = [self.served(make(model), daemon, rank=rank, world_size=2, **options) for rank, model in enumerate(made)]
        errors = [None, None]

        def run(rank):
            try:
                work(rank, made[rank], optimizers[rank])
            except psd.Error as error:
                errors[rank] = error
                optimizers[rank].close()

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return made, errors

    def test_rounds_of_two_trainers_are_steps_with_the_mean_gradient(self):
        halves = [list(batches(seed=seed)) for seed in (2, 3)]

        def work(rank, model, optimizer):
            scheduler = lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=STEPS + 1)
            for x, y in halves[rank]:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                scheduler.step()

        made, errors = self.both(self.open_daemon(policy="sync"), adamw, work)
        self.assertEqual(errors, [None, None])
        local = make_net()
        optimizer = adamw(local)
        scheduler = lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=STEPS + 1)
        for parts in zip(*halves):
            optimizer.zero_grad()
            for x, y in parts:
                (nn.functional.mse_loss(local(x), y) / 2).backward()
            optimizer.step()
            scheduler.step()
        for model in made:
            self.assert_close(model, local)

    def test_trainers_of_a_round_set_the_same_numbers(self):
        def work(rank, model, optimizer):
            optimizer.param_groups[1]["lr"] = 0.01 * (1 + rank)
            train(model, optimizer, steps=1)

        daemon = self.open_daemon(policy="sync", policy__round_timeout_ms=600_000)
        _, errors = self.both(daemon, adamw, work)
        told = [str(error) for error in errors if isinstance(error, psd.InvalidArgument)]
        self.assertEqual(len(told), 1, errors)
        self.assertRegex(told[0], "rank [01] and rank [01] step differently: lr 0.0[12] and 0.0[12]")
        self.assertNotIn("\n", told[0])

    def test_another_optimizer_than_the_models_is_refused(self):
        daemon = self.open_daemon(world_size={"min": 1, "max": 2})
        model, other = make_net(), make_net()
        train(model, self.of(adamw(model), daemon, rank=None, world_size=None))
        for make, message in ((lambda parameters: torch.optim.SGD(parameters, 0.1), "the trainer has 'sgd.*this daemon 'adamw"),
                              (lambda parameters: torch.optim.AdamW(parameters, amsgrad=True), "amsgrad true there, false here")):
            self.assert_refused(message, lambda make=make: self.of(make(other.parameters()), daemon, rank=None, world_size=None))

    def test_a_module_follows_the_model_of_an_optimizer(self):
        daemon = self.open_daemon(world_size={"min": 1, "max": 2})
        model, later = make_net(), make_net()
        optimizer = self.of(torch.optim.SGD(model.parameters(), 0.1), daemon, rank=None, world_size=None)
        train(model, optimizer, steps=3)
        optimizer.close()
        follower = self.served(later, daemon, rank=None, world_size=None)
        self.assertTrue(torch.equal(bits(later), bits(model)))
        train(later, follower, steps=3, seed=7)
        train(model, torch.optim.SGD(model.parameters(), 0.1), steps=3, seed=7)
        self.assert_close(later, model)

    # --- Restarts --------------------------------------------------------------------------------------------

    def logged(self, name, **settings):
        return self.open_daemon(listen=(self.unix_address("logged.sock"),), durability={"type": "log", "path": str(self.folder / name)},
                                **settings)

    def test_the_log_has_the_numbers(self):
        daemon = self.logged("log")
        model = make_net()
        optimizer = self.of(adamw(model), daemon)
        after = schedules()["OneCycleLR"](optimizer)
        train(model, optimizer, after, steps=20)
        before = bits(model)
        daemon.kill()
        daemon = self.logged("log")
        pulled = optimizer.model.zeros()
        optimizer.client.pull(pulled)
        self.assertTrue(torch.equal(torch.from_numpy(pulled), torch.from_numpy(optimizer._values)))
        self.assertTrue(torch.equal(bits(model), before))
        train(model, optimizer, after, steps=10, seed=3)
        local = make_net()
        other = adamw(local)
        after = schedules()["OneCycleLR"](other)
        train(local, other, after, steps=20)
        train(local, other, after, steps=10, seed=3)
        self.assert_close(model, local)

    def test_a_checkpoint_brings_back_the_optimizer(self):
        daemon = self.logged("resumed")
        model, local = make_net(), make_net()
        optimizer = self.of(adamw(model), daemon)
        train(model, optimizer)
        optimizer.client.checkpoint()
        optimizer.close()
        self.assert_stops(daemon)
        daemon = self.logged("resumed")
        self.assertIn("adamw", daemon.status()["optimizer"])
        again = make_net()
        self.assert_refused("the trainer has 'sgd", lambda: self.of(torch.optim.SGD(again.parameters(), 0.1), daemon))
        optimizer = self.of(adamw(again, lr=3e-3), daemon)
        self.assertTrue(torch.equal(bits(again), bits(model)))
        train(again, optimizer, steps=5, seed=3)
        other = adamw(local)
        train(local, other)
        for group in other.param_groups:
            group["lr"] = 3e-3
        train(local, other, steps=5, seed=3)
        self.assert_close(again, local)

    @unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
    def test_a_standby_takes_over_with_the_same_bits(self):
        store = etcd.Etcd(self)

        def one(place):
            return self.open_daemon(listen=(self.unix_address(f"{place}.sock"),), durability={"type": "log", "path": str(self.folder / place)},
                                    engine={"endpoints": store.endpoints, "prefix": "/psd/test"},
                                    replication={"silence_ms": 1000, "alone_ms": 20_000})

        primary = one("a")
        primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        model, local = make_net(), make_net()
        optimizer = psd.torch.Optimizer(adamw(model), [primary.address, self.unix_address("b.sock")], rank=0, world_size=1)
        self.addCleanup(optimizer.client.close)
        after = schedules()["OneCycleLR"](optimizer)
        train(model, optimizer, after, steps=10)
        standby = one("b")
        primary.until_in_sync()
        train(model, optimizer, after, steps=10, seed=3)
        before = bits(model)
        primary.kill()
        optimizer._pull()
        self.assertEqual(standby.status()["replica_set"]["role"], "primary")
        self.assertTrue(torch.equal(bits(model), before))
        train(model, optimizer, after, steps=5, seed=4)
        other = adamw(local)
        after = schedules()["OneCycleLR"](other)
        for steps, seed in ((10, 2), (10, 3), (5, 4)):
            train(local, other, after, steps, seed)
        self.assert_close(model, local)

    # --- The configuration -------------------------------------------------------------------------------------

    def test_the_configurations_optimizer_applies(self):
        configured = '{"type":"adamw","lr":0.01,"weight_decay":0.1}'

        def same(model, **options):
            return torch.optim.AdamW(model.parameters(), **{"lr": 0.01, "weight_decay": 0.1, **options})

        mine, local = make_net(), make_net()
        with self.assertLogs("psd", logging.INFO) as logs:
            optimizer = self.of(same(mine), self.daemon(policy="locked", optimizer=configured))
        self.assertTrue(any("the daemon's configuration has the optimizer" in line for line in logs.output), logs.output)
        train(mine, optimizer)
        train(local, same(local))
        self.assert_close(mine, local)
        step = optimizer.client.step
        scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
        optimizer.step()
        scheduler.step()
        self.assert_refused("param_groups has other numbers than the daemon's configuration.*remove `optimizer` from the configuration",
                            optimizer.step)
        self.assertEqual(optimizer.client.step, step + 1)
        for make, message in ((lambda model: same(model, lr=0.02), "lr 0.02 there, 0.01 here.*remove `optimizer`"),
                              (lambda model: torch.optim.SGD(model.parameters(), 0.01), "the trainer has 'sgd"),
                              (adamw, "groups have different numbers.*remove `optimizer`")):
            other = make_net()
            self.assert_refused(message, lambda make=make, other=other: self.of(make(other), self.daemon(policy="locked", optimizer=configured)))

    def test_an_operator_does_not_set_what_the_program_sets(self):
        daemon = self.open_daemon()
        model = make_net()
        optimizer = self.of(adamw(model), daemon)
        for room in (1 << 27, 1 << 28):  # before and after its first push
            self.assert_refused("the pushes of trainers set it, such as those of rank 0", lambda: optimizer.client.set("optimizer.lr=0.5"))
            self.assertIn(f"-> {room}", optimizer.client.set(f"limits.staged_bytes={room}"))
            train(model, optimizer, steps=2)
        optimizer.close()
        with psd.Client(daemon.address) as client:
            self.assert_refused("from 'adamw.*to 'sgd.*; the program of the first trainer chose it", lambda: client.set("optimizer.lr=0.5"))

    # --- What is refused ---------------------------------------------------------------------------------------

    def test_what_the_daemon_cannot_do_is_refused(self):
        daemon = self.open_daemon()
        optim = torch.optim

        def stepped(model):
            optimizer = optim.Adam(model.parameters())
            train(model, optimizer, steps=1)
            return optimizer

        def two_modules(_):
            return optim.SGD([*make_net().parameters(), *make_net().parameters()], 0.1)

        class Own(optim.SGD):
            pass

        for make, message in ((lambda model: optim.LBFGS(model.parameters()), "the daemon has no LBFGS, only torch.optim's SGD, Adam"),
                              (lambda model: optim.NAdam(model.parameters()), "the daemon has no NAdam"),
                              (lambda model: Own(model.parameters()), "the daemon has no Own"),
                              (lambda model: optim.SGD(model.parameters(), 0.1, maximize=True), "maximize=True.*negate the loss"),
                              (lambda model: optim.SGD(model.parameters(), 0.1, differentiable=True), "differentiable=True"),
                              (lambda model: optim.SGD([{"params": model[0].parameters(), "nesterov": False}, {"params": model[3].parameters()}],
                                                       0.1, 0.9, nesterov=True), "nesterov differs between the parameter groups"),
                              (lambda model: optim.Adagrad([{"params": model[0].parameters(), "initial_accumulator_value": 1.0},
                                                            {"params": model[3].parameters()}]),
                               "initial_accumulator_value differs between the parameter groups"),
                              (stepped, "has made steps or loaded a state already"),
                              (two_modules, "no module contains all parameters of the optimizer.*pass model=")):
            model = make_net()
            with self.subTest(message):
                self.assert_refused(message, lambda make=make, model=model: self.of(make(model), daemon))
        self.assertEqual(daemon.status()["trainers"], [])

    def test_parameters_of_two_modules_have_the_names_of_model(self):
        parts = nn.ModuleDict({"first": nn.Linear(8, 4), "second": nn.Linear(4, 1)})
        first, second = parts["first"], parts["second"]
        optimizer = self.of(torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1), model=parts)
        self.assertEqual(list(optimizer.model.shapes), ["first.weight", "first.bias", "second.weight", "second.bias"])
        optimizer.close()
        optimizer = self.of(torch.optim.SGD(second.parameters(), 0.1))
        self.assertEqual(list(optimizer.model.shapes), ["weight", "bias"])
        self.assert_refused("of the optimizer's parameters are not in the module Linear",
                            lambda: self.of(torch.optim.SGD(first.parameters(), 0.1), model=second))

    def test_flags_are_those_of_the_construction(self):
        model = make_net()
        optimizer = self.of(torch.optim.SGD(model.parameters(), 0.1, 0.9))
        train(model, optimizer, steps=1)
        optimizer.param_groups[0]["nesterov"] = True
        self.assert_refused("nesterov has changed to True", optimizer.step)
        optimizer.param_groups[0]["nesterov"] = False
        optimizer.param_groups[0]["lr"] = "fast"
        self.assert_refused("lr is 'fast'; expected a number", optimizer.step)
        optimizer.param_groups[0]["lr"] = -1.0
        self.assert_refused("lr", optimizer.step)
        optimizer.param_groups[0]["lr"] = 0.1
        train(model, optimizer, steps=1)

    def test_a_momentum_of_one_group(self):
        self.compare(lambda model: torch.optim.SGD([{"params": model[0].parameters(), "momentum": 0.0}, {"params": model[3].parameters()}],
                                                   0.05, 0.9, weight_decay=0.1))

    def test_numbers_that_change_while_gradients_leave_are_noticed(self):
        model = make_net()
        optimizer = self.of(adamw(model), overlap=True)
        train(model, optimizer, steps=2)
        x, y = next(batches())
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.param_groups[0]["lr"] = 0.5
        self.assert_refused("changed after gradients had been sent", optimizer.step, psd.Error)
        train(model, optimizer, steps=2)

    # --- Saved numbers -----------------------------------------------------------------------------------------

    def test_state_dict_has_the_numbers(self):
        model, resumed = make_net(), make_net()
        daemon = self.open_daemon(world_size={"min": 1, "max": 2})
        optimizer = self.of(adamw(model), daemon, rank=None, world_size=None)
        scheduler = lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=STEPS + 1)
        train(model, optimizer, lambda _: scheduler.step(), steps=10)
        saved = io.BytesIO()
        torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, saved)
        optimizer.close()
        saved.seek(0)
        loaded = torch.load(saved)
        self.assertEqual((loaded["optimizer"]["state"], loaded["optimizer"]["psd"]["step"]), ({}, 10))
        again = self.of(adamw(resumed), daemon, rank=None, world_size=None)
        scheduler = lr_scheduler.OneCycleLR(again, 0.02, total_steps=STEPS + 1)
        again.load_state_dict(loaded["optimizer"])
        scheduler.load_state_dict(loaded["scheduler"])
        self.assertEqual([group["lr"] for group in again.param_groups], [group["lr"] for group in optimizer.param_groups])
        train(resumed, again, lambda _: scheduler.step(), steps=10, seed=3)
        local = make_net()
        other = adamw(local)
        scheduler = lr_scheduler.OneCycleLR(other, 0.02, total_steps=STEPS + 1)
        for seed in (2, 3):
            train(local, other, lambda _: scheduler.step(), steps=10, seed=seed)
        self.assert_close(resumed, local)
        self.assert_refused("the daemon's run has begun", lambda: again.load_state_dict(other.state_dict()))
        self.assert_refused("other parameter groups", lambda: again.load_state_dict({"state": {}, "param_groups": []}))

    def test_a_scheduler_of_the_wrapped_optimizer(self):
        mine, local = make_net(), make_net()
        inner, other = adamw(mine), adamw(local)
        schedulers = [lr_scheduler.StepLR(each, 5, 0.5) for each in (inner, other)]
        optimizer = self.of(inner)
        self.assertIs(optimizer.param_groups[0], inner.param_groups[0])
        self.assertEqual(optimizer.defaults["lr"], 1e-2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for model, each, scheduler in ((mine, optimizer, schedulers[0]), (local, other, schedulers[1])):
                train(model, each, lambda _, scheduler=scheduler: scheduler.step())
        self.assert_close(mine, local)
        self.assert_refused("cannot be extended", lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}))


if __name__ == "__main__":
    processes.main()
