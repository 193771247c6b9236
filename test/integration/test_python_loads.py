"""load_state_dict() of a module that is served: its values are for evaluation, and are never trained from or pushed."""

import copy
import io
import logging

import diloco_learners
import processes
import served_models
import torch
from diloco_learners import PERIOD, step
from served_models import SGD
from test_python_torch import batches, make_model, train
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import psd
import psd.torch

PLAIN = '{"type":"sgd","lr":0.05}'


class Whole(nn.Module):
    """With parameters that are served, frozen ones and buffers."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.frozen = make_model(), nn.BatchNorm1d(1), nn.Linear(1, 1)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.frozen(self.norm(self.body(x)))


def ones(model):
    return {key: torch.ones_like(value) for key, value in model.state_dict().items()}


def values_of(model):
    return {key: value.clone() for key, value in model.state_dict().items()}


class PythonLoads(served_models.ServedTest):
    def assert_values(self, model, values):
        for key, value in model.state_dict().items():
            torch.testing.assert_close(value, values[key], rtol=0, atol=0, msg=lambda text, key=key: f"{key}: {text}")

    def warning(self, logs):
        self.assertEqual(len(logs.records), 1, logs.output)
        self.assertNotIn("\n", logs.records[0].getMessage())
        return logs.records[0].getMessage()

    def test_loaded_values_stay_until_a_step_that_pushes_nothing(self):
        x, y = next(batches())
        for overlap, after in ((False, False), (False, True), (True, False)):  # after: the load comes after the backward pass
            with self.subTest(overlap=overlap, after=after):
                model = make_model()
                optimizer = self.served(model, overlap=overlap)
                train(model, optimizer)
                trained, pushed = values_of(model), optimizer.client.bytes_pushed
                optimizer.zero_grad()
                if after:
                    nn.functional.mse_loss(model(x), y).backward()
                model.load_state_dict(ones(model))
                self.assert_values(model, ones(model))
                if not after:
                    nn.functional.mse_loss(model(x), y).backward()
                with self.assertLogs("psd", logging.WARNING) as logs:
                    optimizer.step()
                self.assertRegex(self.warning(logs), r"^load_state_dict\(\) has changed parameter '0.weight' and 3 more: .*no gradient")
                self.assert_values(model, trained)
                self.assertEqual((optimizer.client.step, optimizer.client.bytes_pushed), (20, pushed))
                self.assertFalse(model[0].weight.grad.any())
                local = make_model()
                steps = torch.optim.SGD(local.parameters(), 0.05, 0.9)
                for _ in range(2):
                    train(local, steps)
                with self.assertNoLogs("psd", logging.WARNING):
                    train(model, optimizer)
                self.assert_same(model, local)

    def test_a_closure_trains_from_the_values_of_the_daemon(self):
        models = [make_model() for _ in range(2)]
        for number, model in enumerate(models):
            optimizer = self.served(model)
            x, y = next(batches())

            def closure(model=model, x=x, y=y):
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
            if number:
                model.load_state_dict(ones(model))
                closure()
                with self.assertLogs("psd", logging.WARNING):
                    optimizer.step(closure)
            else:
                optimizer.zero_grad()
                optimizer.step(closure)
            self.assertEqual(optimizer.client.step, 2)
        self.assert_same(*models)

    def test_a_checkpoint_that_is_loaded_after_the_daemon_has_the_model_is_rejected(self):
        x, y = next(batches())
        for overlap in (False, True):
            with self.subTest(overlap=overlap):
                model = make_model()
                made = values_of(model)
                optimizer = self.served(model, overlap=overlap)
                model.load_state_dict(ones(model))
                nn.functional.mse_loss(model(x), y).backward()
                with self.assertRaisesRegex(psd.InvalidArgument, "'0.weight' before the first step.*load the checkpoint before") as refused, \
                        self.assertNoLogs("psd", logging.WARNING):
                    optimizer.step()
                self.assertNotIn("\n", str(refused.exception))
                self.assert_values(model, made)
                self.assertEqual(optimizer.client.step, 0)
                train(model, optimizer)

    def test_the_daemon_that_has_trained_the_model_goes_on(self):
        daemon, local = self.daemon(policy="locked", optimizer=SGD), make_model()
        steps = torch.optim.SGD(local.parameters(), 0.05, 0.9)
        model = make_model()
        train(model, optimizer := self.served(model, daemon))
        saved = values_of(model)
        optimizer.close()
        model = make_model()
        optimizer = self.served(model, daemon)
        model.load_state_dict(saved)
        with self.assertNoLogs("psd", logging.WARNING):
            train(model, optimizer)
        for _ in range(2):
            train(local, steps)
        self.assert_same(model, local)

    def test_a_state_dict_of_the_optimizer_that_is_ahead_of_the_daemon_is_reported(self):
        daemons = [self.daemon(policy="locked", optimizer=None) for _ in range(2)]
        saved = None
        for daemon, log in ((daemons[0], None), (daemons[0], None), (daemons[1], r"of version 20 of the model, and the daemon has version 1: ")):
            model = make_model()
            with psd.torch.Optimizer(torch.optim.Adam(model.parameters(), 0.01), daemon.address) as optimizer:
                if log:
                    optimizer.step()
                with self.assertLogs("psd", logging.WARNING) if log else self.assertNoLogs("psd", logging.WARNING) as logs:
                    if saved:
                        optimizer.load_state_dict(saved)
                if log:
                    self.assertRegex(self.warning(logs), log)
                self.assertEqual(optimizer.param_groups[0]["lr"], 0.02 if saved else 0.01)
                optimizer.param_groups[0]["lr"] = 0.02
                if not saved:
                    train(model, optimizer)
                    saved = optimizer.state_dict()

    def test_the_same_values_are_loaded_silently(self):
        daemon = self.daemon(policy="locked", optimizer=PLAIN)
        models = [make_model() for _ in range(2)]
        one, other = (self.served(model, daemon, rank=rank, world_size=2) for rank, model in enumerate(models))
        x, y = next(batches())
        for way in ("once", "after others", "in part"):
            with self.subTest(way), self.assertNoLogs("psd", logging.WARNING):
                saved = values_of(models[0])
                if way == "after others":  # as an average for an evaluation
                    models[0].load_state_dict(ones(models[0]))
                train(models[1], other)  # the daemon's values are others now
                (models[0][2] if way == "in part" else models[0]).load_state_dict(
                    {key[2:]: value for key, value in saved.items() if key[0] == "2"} if way == "in part" else saved)
                before = one.client.step
                one.zero_grad()
                nn.functional.mse_loss(models[0](x), y).backward()
                one.step()
                self.assertEqual(one.client.step, before + 1)

    def test_values_that_are_written_by_hand_are_refused_beside_loads(self):
        model = make_model()
        optimizer = self.served(model)
        before = values_of(model)
        for load in (ones(model[0]), model[0].state_dict()):
            nn.init.zeros_(model[2].weight)
            model[0].load_state_dict(load)
            with self.assertRaisesRegex(psd.InvalidArgument, "^parameter '2.weight' was changed outside this optimizer"):
                optimizer.step()
            self.assert_values(model, before)
        nn.init.zeros_(model[2].weight)
        model[2].load_state_dict(model[2].state_dict())  # the values that were written by hand
        with self.assertRaisesRegex(psd.InvalidArgument, "^parameter '2.weight' was changed outside this optimizer"):
            optimizer.step()
        train(model, optimizer)

    def test_what_is_not_served_is_loaded(self):
        model, other = Whole(), Whole()
        nn.init.ones_(other.frozen.weight)
        optimizer = self.served(model)
        with self.assertNoLogs("psd", logging.WARNING):
            model.frozen.load_state_dict(other.frozen.state_dict())
            model.load_state_dict({"norm.running_mean": torch.ones(1)}, strict=False)
            self.assertEqual((float(model.frozen.weight), float(model.norm.running_mean)), (1, 1))
            copied, saved = copy.deepcopy(model), io.BytesIO()
            copied.load_state_dict(ones(model))
            torch.save(model, saved)
            saved.seek(0)
            torch.load(saved, weights_only=False).load_state_dict(ones(model))
            train(model, optimizer)
        self.assertEqual(float(model.frozen.weight), 1)
        with self.assertRaisesRegex(psd.InvalidArgument, r"assign=True.*'body.0.weight', which a psd.torch.Optimizer serves") as refused:
            model.load_state_dict(ones(model), assign=True)
        self.assertNotIn("\n", str(refused.exception))
        model.load_state_dict(ones(model))
        optimizer.close()
        self.assert_values(model, ones(model))
        model.load_state_dict(other.state_dict(), assign=True)
        self.assert_values(model, other.state_dict())

    def test_assigned_samples_and_rows_are_used_again(self):
        class Looks(nn.Module):
            def __init__(self):
                super().__init__()
                self.rows, self.body = psd.torch.Embedding("e", 8, initial="zero"), make_model()

            def forward(self, ids):
                return self.body(self.rows(ids))

        model, data = Looks(), TensorDataset(torch.arange(12))
        optimizer = self.served(model)
        sampler = psd.torch.AssignedSampler(optimizer, data, 4, 1, shuffle=False)
        seen = []
        with self.assertLogs("psd", logging.WARNING) as logs:
            for number, (ids,) in enumerate(DataLoader(data, batch_sampler=sampler)):
                optimizer.zero_grad()
                if number == 1:
                    model.load_state_dict(ones(model))
                model(ids).square().sum().backward()
                seen.append(ids.tolist())
                optimizer.step()
                if number == 1:
                    self.assertFalse(model.rows(ids).any())
        self.warning(logs)
        self.assertEqual((seen, optimizer.client.step), ([[0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7], [8, 9, 10, 11]], 3))
        self.assertTrue(model.rows(data.tensors[0]).all())


class PythonLoadsOfLearners(diloco_learners.LearnerTest):
    def learners(self, **options):
        """A learner into which values are loaded, and one without, each at its daemon."""
        for _ in range(2):
            model = make_model()
            inner = torch.optim.AdamW(model.parameters(), 0.01)
            yield model, inner, self.learner(self.diloco(**options), model, inner, rank=0, world_size=1)

    def test_loaded_values_are_never_exchanged(self):
        for options in ({}, {"fragments": 2, "delay": 1}):
            for steps in (PERIOD - 1, PERIOD, PERIOD + 2):
                with self.subTest(options, steps=steps):
                    (model, inner, learner), (other, other_inner, other_learner) = self.learners(**options)
                    data = list(diloco_learners.batches(2 * PERIOD))
                    for x, y in data[:steps]:
                        step(model, inner, x, y)
                        step(other, other_inner, x, y)
                    model.load_state_dict(ones(model))
                    with self.assertLogs("psd", logging.WARNING) as logs:
                        step(model, inner, *data[0])  # changes neither the values nor the inner optimizer's state
                    self.assertEqual(len(logs.output), 1)
                    self.assertRegex(logs.output[0], r"load_state_dict\(\) has changed parameter '0.weight' and 3 more: .*no gradient")
                    self.assertEqual(learner.progress, steps)
                    with self.assertNoLogs("psd", logging.WARNING):
                        model.load_state_dict(values := {key: value.clone() for key, value in model.state_dict().items()})
                        model.load_state_dict(ones(model))
                        model.load_state_dict(values)
                        for x, y in data[steps:]:
                            step(model, inner, x, y)
                            step(other, other_inner, x, y)
                    for one, two in zip(model.parameters(), other.parameters()):
                        torch.testing.assert_close(one, two, rtol=0, atol=0)

    def test_a_closure_and_an_exchange_use_the_values_of_the_learner(self):
        (model, inner, learner), (other, other_inner, other_learner) = self.learners()
        for x, y in diloco_learners.batches(2):
            for each, steps in ((model, inner), (other, other_inner)):
                def closure(each=each, x=x, y=y):
                    loss = nn.functional.mse_loss(each(x), y)
                    loss.backward()
                    return loss

                steps.zero_grad()
                if each is model:
                    model.load_state_dict(ones(model))
                    model(x).sum().backward()
                    with self.assertLogs("psd", logging.WARNING):
                        inner.step(closure)
                else:
                    other_inner.step(closure)
        model.load_state_dict(ones(model))
        with self.assertLogs("psd", logging.WARNING) as logs:
            learner.sync()
        self.assertIn("this exchange restores the learner's values", logs.output[0])
        other_learner.sync()
        for one, two in zip(model.parameters(), other.parameters()):
            torch.testing.assert_close(one, two, rtol=0, atol=0)

    def test_close_exchanges_steps_and_keeps_loaded_values(self):
        (model, inner, learner), (other, other_inner, other_learner) = self.learners()
        for x, y in diloco_learners.batches(PERIOD + 2):
            step(model, inner, x, y)
            step(other, other_inner, x, y)
        model.load_state_dict(ones(model))
        with self.assertRaisesRegex(psd.InvalidArgument, "assign=True.*which a psd.torch.DiLoCo serves"):
            model.load_state_dict(ones(model), assign=True)
        reads = []
        with self.assertNoLogs("psd", logging.WARNING):
            for each in (learner, other_learner):
                each.close()
                with psd.Client(each.client._servers) as reader:
                    reader.observe(each.model)
                    reads.append(each.model.zeros())
                    reader.pull(reads[-1])
        self.assertTrue((reads[0] == reads[1]).all())
        for parameter in model.parameters():
            self.assertTrue(torch.equal(parameter, torch.ones_like(parameter)))


if __name__ == "__main__":
    processes.main()
