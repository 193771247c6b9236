"""psd.torch.DiLoCo and a program's changes to the model and the optimizer around it."""

import copy
from unittest import mock

import diloco_learners
import processes
import torch
from diloco_learners import PERIOD, batches, make_model, step
from torch import nn

import psd
import psd.torch


class PythonDiLoCoPrograms(diloco_learners.LearnerTest):
    def test_a_parameter_that_is_no_number_is_named(self):
        for options in ({}, {"fragments": 2}):
            with self.subTest(options):
                daemon, model = self.diloco(**options), make_model()
                inner = torch.optim.SGD(model.parameters(), 0.1)
                learner = self.learner(daemon, model, inner, rank=0, world_size=1)
                (x, y), = batches(1)
                step(model, inner, x, y)
                with torch.no_grad():
                    model[2].bias.fill_(float("nan"))
                with self.assertRaisesRegex(psd.NonFinite, "after 1 step.s. of the run the parameter '2.bias' is NaN"):
                    learner.close()
                self.assertEqual(daemon.status()["counters"]["refused_non_finite"], 0)
                step(model, inner, x, y)  # the hooks are removed with the connection

    def test_a_parameter_that_is_frozen_or_unfrozen_later_is_noticed(self):
        daemon, model = self.diloco(), make_model()
        model[2].bias.requires_grad_(False)
        inner = torch.optim.SGD(model.parameters(), 0.1)
        (x, y), = batches(1)
        with self.learner(daemon, model, inner, rank=0, world_size=1):
            for parameter, name, before, words in ((model[2].bias, "2.bias", False, "requires a gradient now"),
                                                   (model[0].weight, "0.weight", True, "requires no gradient any more")):
                parameter.requires_grad_(not before)
                with self.assertRaisesRegex(psd.InvalidArgument, f"parameter '{name}' {words}.*psd.torch.DiLoCo is made"):
                    step(model, inner, x, y)
                parameter.requires_grad_(before)
            step(model, inner, x, y)

    def test_a_step_counts_once_however_it_is_made(self):
        class Wrapper(torch.optim.Optimizer):
            """Like accelerate's: has no hooks of its own."""

            def __init__(self, optimizer):
                self.optimizer = optimizer

            def step(self, closure=None):
                return self.optimizer.step(closure)

        class Again(torch.optim.SGD):
            """Calls the step of its base, which has hooks as well."""

            def step(self, closure=None):
                return super().step(closure)

        class Skips(torch.optim.SGD):
            """Has its steps skipped within step(), like fused ones under a GradScaler."""

            def step(self, closure=None):
                if not getattr(self, "found_inf", 0):
                    super().step(closure)

        torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)  # this gives the class hooks
        for wrap in (lambda inner: inner, Wrapper, lambda inner: Wrapper(Wrapper(inner))):
            for kind in (torch.optim.SGD, Again, Skips, torch.optim.LBFGS):
                daemon, model = self.diloco(), make_model()
                inner = kind(model.parameters(), 0.01)
                given = wrap(inner)
                with self.learner(daemon, model, given, rank=0, world_size=1) as learner:
                    for count, (x, y) in enumerate(batches(PERIOD + 1), 1):
                        def closure(x=x, y=y):
                            model.zero_grad()
                            loss = nn.functional.mse_loss(model(x), y)
                            loss.backward()
                            return loss

                        given.step(closure)
                        self.assertEqual(learner.progress, count)
                        if kind is Skips:
                            inner.found_inf = torch.ones(1)
                            inner.step()
                            del inner.found_inf
                            self.assertEqual(learner.progress, count)
                    with self.assertRaises(ZeroDivisionError):
                        given.step(lambda: 1 // 0)
                    given.step(closure)  # after one that an exception ended
                    self.assertEqual(learner.progress, PERIOD + 2)

    def test_a_wrapper_of_which_the_optimizer_is_not_known_is_refused(self):
        class Wrapper(torch.optim.Optimizer):
            def __init__(self, *optimizers):
                self.__dict__.update({str(index): each for index, each in enumerate(optimizers)})

        model = make_model()
        inner = torch.optim.SGD(model.parameters(), 0.1)
        for wrapper in (Wrapper(), Wrapper(inner, torch.optim.SGD(model.parameters(), 0.1))):
            with self.assertRaisesRegex(psd.InvalidArgument, "inner_optimizer is a Wrapper, whose step.. calls no hooks"):
                psd.torch.DiLoCo(model, wrapper, "tcp://127.0.0.1:1")

    def test_a_constructor_that_fails_leaves_all_as_it_was(self):
        daemon, model = self.diloco(), make_model()
        inner = torch.optim.SGD(model.parameters(), 0.1)
        with mock.patch("psd._diloco.Loads", side_effect=KeyError), self.assertRaises(KeyError):
            psd.torch.DiLoCo(model, inner, daemon.address, rank=0, world_size=1)
        status = daemon.status()
        self.assertEqual((status["trainers"], status["trainers_lost"]), ([], 0))
        for mine, before in zip(model.parameters(), make_model().parameters()):
            self.assertTrue(torch.equal(mine, before))
        self.assertFalse(inner._optimizer_step_pre_hooks or inner._optimizer_step_post_hooks)
        for module in model.modules():
            self.assertFalse(module._load_state_dict_pre_hooks)
        step(model, inner, *next(batches(1)))
        with self.learner(daemon, model, inner, rank=0, world_size=1):
            step(model, inner, *next(batches(1)))

    def test_a_parameter_that_became_another_is_refused(self):
        def as_bfloat16(model):
            model.bfloat16()

        def of_another_shape(model):
            model[2].bias.data = torch.zeros(2)

        def another_layer(model):
            model[2] = nn.Linear(16, 1)

        def one_more_layer(model):
            model.append(nn.Linear(1, 1))

        (x, y), = batches(1)
        for change, words in ((as_bfloat16, "parameter '0.weight' is torch.bfloat16"), (of_another_shape, r"parameter '2.bias' has shape \(2,\) now"),
                              (another_layer, "parameter '2.weight' was replaced in the module"),
                              (one_more_layer, "parameter '3.weight' was added to the module")):
            for options in ({}, {"fragments": 2}):
                with self.subTest(words, **options):
                    daemon, model = self.diloco(**options), make_model()
                    inner = torch.optim.SGD(model.parameters(), 0.0)
                    learner = self.learner(daemon, model, inner, rank=0, world_size=1)
                    step(model, inner, x, y)
                    change(model)
                    with self.assertRaisesRegex(psd.InvalidArgument, words):
                        inner.step()
                    with self.assertRaisesRegex(psd.InvalidArgument, words):
                        learner.close()
                    self.assertEqual(daemon.status()["trainers"], [])

    def test_a_parameter_is_served_once(self):
        daemon, model = self.diloco(), make_model()
        inner, second = (torch.optim.SGD(model.parameters(), 0.1) for _ in range(2))
        with self.learner(daemon, model, inner, rank=0, world_size=1):
            with self.assertRaisesRegex(psd.InvalidArgument, "parameter '0.weight' is served by a psd.torch.DiLoCo already"):
                psd.torch.DiLoCo(model, second, daemon.address, rank=0, world_size=1)
        with self.learner(daemon, model, second, rank=0, world_size=1):
            pass
        model[2].weight.data = model[0].weight.data[:1]
        with self.assertRaisesRegex(psd.InvalidArgument, "parameters '.*' and '.*' share memory"):
            psd.torch.DiLoCo(model, inner, daemon.address, rank=0, world_size=1)

    def test_a_change_from_outside_is_reported_once_and_exchanged(self):
        daemon, model = self.diloco(optimizer='{"type":"sgd","lr":1}'), make_model()
        inner = torch.optim.SGD(model.parameters(), 0.0)
        (x, y), = batches(1)
        with self.learner(daemon, model, inner, rank=0, world_size=1):
            with self.assertLogs("psd", "WARNING") as logs:
                for _ in range(3):
                    step(model, inner, x, y)
                    with torch.no_grad():
                        model[0].weight.clamp_(-0.01, 0.01)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("parameter '0.weight' was changed outside the inner optimizer's steps", logs.output[0])
        with self.assertLogs("psd", "WARNING") as logs, self.learner(daemon, other := make_model(), torch.optim.SGD(other.parameters(), 0.1)):
            self.assertLessEqual(other[0].weight.abs().max().item(), 0.011)
        self.assertIn("the daemon has a model already, at version 1: its values replace those of the module", logs.output[0])

    def test_a_rate_that_is_set_beside_lr_lambda_is_refused(self):
        daemon, model = self.diloco(), make_model()
        inner = torch.optim.SGD(model.parameters(), 0.1)
        (x, y), = batches(1)
        with self.learner(daemon, model, inner, rank=0, world_size=1, lr_lambda=lambda step: 0.5):
            step(model, inner, x, y)
            inner.param_groups[0]["lr"] = 0.3
            with self.assertRaisesRegex(psd.InvalidArgument, "lr was set while lr_lambda gives it"):
                step(model, inner, x, y)
            inner.param_groups[0]["lr"] = 0.05
            step(model, inner, x, y)

    def test_a_module_that_is_saved_whole_is_read_without_psd(self):
        daemon, model = self.diloco(), make_model()
        inner = torch.optim.SGD(model.parameters(), 0.1)
        path = self.folder / "model.pt"
        with self.learner(daemon, model, inner, rank=0, world_size=1):
            torch.save(model, path)
            copy.deepcopy(model).load_state_dict(make_model().state_dict())
        with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.Tanh]):
            loaded = torch.load(path)
        for mine, theirs in zip(model.parameters(), loaded.parameters()):
            self.assertTrue(torch.equal(mine, theirs))
        self.assertNotIn(b"psd", path.read_bytes())

    def test_what_does_not_go_is_refused(self):
        daemon, model = self.diloco(), make_model()
        inner = torch.optim.SGD(model.parameters(), 0.1)
        with self.assertRaisesRegex(psd.InvalidArgument, "sync_every is 4, and the daemon's policy.period 5"):
            psd.torch.DiLoCo(model, inner, daemon.address, rank=0, world_size=1, sync_every=4)
        tables = nn.Sequential(psd.torch.Embedding("item", 2), nn.Linear(2, 1))
        with self.assertRaisesRegex(psd.InvalidArgument, "^the model has a psd.torch.Embedding, of table 'item', whose rows learners do not"):
            psd.torch.DiLoCo(tables, torch.optim.SGD(tables.parameters(), 0.1), "tcp://localhost:1", rank=0, world_size=1)
        with self.assertRaisesRegex(TypeError, "^sync_every is '5'; expected a whole number$"):
            psd.torch.DiLoCo(model, inner, daemon.address, rank=0, world_size=1, sync_every="5")
        with self.learner(daemon, model, inner, rank=0, world_size=1):
            with self.assertRaisesRegex(psd.InvalidArgument, "inner_optimizer is another psd.torch.DiLoCo's"):
                psd.torch.DiLoCo(model, inner, daemon.address, rank=0, world_size=1)
        with self.assertRaisesRegex(psd.InvalidArgument, "policy is diloco.*psd.torch.DiLoCo is for diloco"):
            psd.torch.Optimizer(model, daemon.address, rank=0, world_size=1)
        other = self.daemon(policy="locked")
        with self.assertRaisesRegex(psd.InvalidArgument, "policy is locked; psd.torch.DiLoCo needs diloco"):
            psd.torch.DiLoCo(model, inner, other.address, rank=0, world_size=1)


if __name__ == "__main__":
    processes.main()
