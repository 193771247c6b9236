"""psd.torch.Optimizer among PyTorch's own tools: each program trains as with torch.optim alone."""

import logging
import signal
import sys
import threading
import warnings

import ctrl_c
import processes
import served_models
import torch
from test_python_optimizer import batches, make_net, train, two_groups
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import DataLoader, TensorDataset

import psd
import psd.torch

sys.path.insert(0, str(processes.REPO / "trainer" / "python" / "examples"))
import gpt

torch.set_num_threads(1)


def adamw(model):
    return torch.optim.AdamW(two_groups(model), lr=1e-2)


def sgd(model):
    return torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], 0.05, 0.9)


def values_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


class Symmetric(nn.Module):
    def forward(self, matrix):
        return matrix.triu() + matrix.triu(1).T


class Low(nn.Module):
    """A linear layer, frozen, and the product of two small matrices, which is trained: LoRA."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(rank, base.in_features) / 4), nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


class PythonTorchTools(served_models.ServedTest):
    def assert_refused(self, message, make, kind=psd.InvalidArgument):
        with self.assertRaisesRegex(kind, message) as refused:
            make()
        self.assertNotIn("\n", str(refused.exception))
        return str(refused.exception)

    def compare(self, run, make=make_net, optimizer_of=adamw, **options):
        """run(model, optimizer) of a model with the daemon, and of one without. Returns the psd optimizer and both
        models, or what run() returned."""
        mine, local = make(), make()
        optimizer = self.of(optimizer_of(mine), **options)
        results = [run(model, each) or model for model, each in ((mine, optimizer), (local, optimizer_of(local)))]
        self.assert_close(*results)
        return optimizer, *results

    # --- Tools that wrap the model, or the step -------------------------------------------------------------

    def test_compiled_models_and_steps(self):
        def model(backend):
            return lambda module, optimizer: train(torch.compile(module, backend=backend), optimizer, steps=6)

        def method(module, optimizer):
            module.compile(backend="eager")
            train(module, optimizer, steps=6)

        def whole_step(module, optimizer):
            scheduler = lr_scheduler.StepLR(optimizer, 2, 0.5)

            @torch.compile(backend="eager")
            def step(x, y):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(module(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(module.parameters(), 1.0)
                optimizer.step()
                return loss

            for x, y in batches(6):
                step(x, y)
                scheduler.step()

        for what, run in {"model": model("eager"), "aot_eager": model("aot_eager"), "method": method, "step": whole_step}.items():
            with self.subTest(what):
                optimizer, *_ = self.compare(run)
                self.assertEqual(optimizer.client.step, 6)
                self.assertIn("0.weight", optimizer.model.shapes, "the names are those of the module that is compiled")
        compiled = torch.compile(make_net(), backend="eager")
        self.assertIn("0.weight", self.of(adamw(compiled)).model.shapes)

    def test_a_scaler_skips_steps_that_overflow(self):
        steps = []

        def run(model, optimizer):
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
            scheduler = lr_scheduler.StepLR(optimizer, 2, 0.5)
            for step, (x, y) in enumerate(batches(12)):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y) * (float("inf") if step in (2, 7) else 1.0)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                before = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                if scaler.get_scale() >= before:
                    scheduler.step()
            steps.append(scaler.get_scale())

        optimizer, *_ = self.compare(run)
        self.assertEqual(optimizer.client.step, 10)
        self.assertEqual(*steps)

    def test_averaged_models(self):
        def run(model, optimizer):
            averaged, ema = swa_utils.AveragedModel(model), swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
            scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 30)
            swa = swa_utils.SWALR(optimizer, 0.02, anneal_epochs=3)
            for step, (x, y) in enumerate(batches()):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                ema.update_parameters(model)
                if step > 15:
                    averaged.update_parameters(model)
                    swa.step()
                else:
                    scheduler.step()
            swa_utils.update_bn(((x,) for x, _ in batches(4)), averaged)
            return nn.ModuleList([model, averaged, ema])

        def make():
            torch.manual_seed(6)
            return nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))

        _, mine, local = self.compare(run, make)
        torch.testing.assert_close(mine[1].module[1].running_mean, local[1].module[1].running_mean)

    def test_parametrized_weights(self):
        def make():
            torch.manual_seed(7)
            model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), parametrizations.weight_norm(nn.Linear(8, 1)))
            parametrize.register_parametrization(model[0], "weight", Symmetric())
            return model

        optimizer, mine, _ = self.compare(lambda model, optimizer: train(model, optimizer), make)
        self.assertIn("0.parametrizations.weight.original", optimizer.model.shapes)
        self.assertTrue(torch.equal(mine[0].weight, mine[0].weight.T))

    def test_only_the_adapters_of_a_frozen_model_travel(self):
        def make():
            model = make_net()
            model[0], model[3] = Low(model[0]), Low(model[3])
            for parameter in model[1].parameters():
                parameter.requires_grad_(False)
            return model

        before = make()
        optimizer, mine, _ = self.compare(lambda model, optimizer: train(model, optimizer), make, sgd)
        self.assertEqual(list(optimizer.model.shapes), ["0.down", "0.up", "3.down", "3.up"])
        self.assertLess(optimizer.client.bytes_pushed, 31 * (4 * optimizer.model.size + 600))
        self.assertTrue(torch.equal(mine[0].base.weight, before[0].base.weight))

    # --- Schedulers -------------------------------------------------------------------------------------------

    def test_several_schedulers(self):
        def chained(optimizer):
            return [lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(optimizer, 0.1, total_iters=8), lr_scheduler.ExponentialLR(optimizer, 0.95)])]

        def both(optimizer):
            return [lr_scheduler.ConstantLR(optimizer, 0.2, 5), lr_scheduler.MultiStepLR(optimizer, [10, 20], 0.5)]

        def cyclic(optimizer):
            return [lr_scheduler.CyclicLR(optimizer, 0.01, 0.05, 5, cycle_momentum=True)]

        def restarts(optimizer):
            return [lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 7), lr_scheduler.MultiplicativeLR(optimizer, lambda _: 0.99)]

        for make in (chained, both, cyclic, restarts):
            with self.subTest(make.__name__):
                def run(model, optimizer, make=make):
                    schedulers = make(optimizer)
                    train(model, optimizer, lambda _: [scheduler.step() for scheduler in schedulers])

                self.compare(run, optimizer_of=lambda model: torch.optim.SGD(two_groups(model), 0.02, 0.9))

    def test_trainers_of_a_round_reduce_the_rate_by_the_loss_of_the_same_examples(self):
        halves, (inputs, wanted) = [list(batches(seed=seed)) for seed in (2, 3)], next(batches(seed=4))

        def plateau(optimizer):
            return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, threshold=0.1)

        @torch.no_grad()
        def validate(model):
            return nn.functional.mse_loss(model(inputs), wanted)

        def run(model, optimizer, half, errors):
            try:
                scheduler = plateau(optimizer)
                for x, y in half:
                    optimizer.zero_grad()
                    nn.functional.mse_loss(model(x), y).backward()
                    optimizer.step()
                    scheduler.step(validate(model))
            except psd.Error as error:
                errors.append(error)
                optimizer.close()

        daemon, made, errors = self.open_daemon(policy="sync"), [make_net(), make_net()], []
        optimizers = [self.of(adamw(model), daemon, rank=rank, world_size=2) for rank, model in enumerate(made)]
        threads = [threading.Thread(target=run, args=(*each, errors)) for each in zip(made, optimizers, halves)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        local = make_net()
        optimizer = adamw(local)
        scheduler = plateau(optimizer)
        for parts in zip(*halves):
            optimizer.zero_grad()
            for x, y in parts:
                (nn.functional.mse_loss(local(x), y) / 2).backward()
            optimizer.step()
            scheduler.step(validate(local))
        self.assertLess(optimizer.param_groups[0]["lr"], 1e-2)
        for model, each in zip(made, optimizers):
            self.assert_close(model, local)
            self.assertEqual(each.param_groups[0]["lr"], optimizer.param_groups[0]["lr"])

    # --- Sparse gradients ---------------------------------------------------------------------------------------

    def test_sparse_embeddings_take_the_dense_step(self):
        class Words(nn.Module):
            def __init__(self, sparse):
                super().__init__()
                torch.manual_seed(8)
                self.word, self.bag = nn.Embedding(40, 4, sparse=sparse), nn.EmbeddingBag(30, 4, sparse=sparse, mode="sum")
                self.out = nn.Linear(4, 1)

            def forward(self, ids):
                return self.out(self.word(ids).mean(1) + self.bag(ids % 30)).squeeze(1)

        def run(model, optimizer, several):
            generator = torch.Generator().manual_seed(9)
            for step in range(20):
                if step % 2 == 0 or not several:
                    optimizer.zero_grad()
                ids = torch.randint(40, (8, 3), generator=generator)
                (model(ids) - ids.sum(1) / 40).square().mean().backward()
                optimizer.step()
                if step % 5 == 4:
                    model.zero_grad()  # the module's own: the next gradient is a sparse tensor

        optim = torch.optim
        for make, overlap in ((lambda model: optim.SGD(model.parameters(), 0.05, 0.9), False), (lambda model: optim.SGD(model.parameters(), 0.1), True),
                              (lambda model: optim.Adagrad(model.parameters(), 0.1), False), (lambda model: optim.AdamW(model.parameters(), 0.01), False)):
            mine, local = Words(True), Words(False)
            with self.assertLogs("psd", logging.INFO) as logs:
                optimizer = self.of(make(mine), overlap=overlap)
                run(mine, optimizer, several=not overlap)
            self.assertEqual(len(logs.output), 1, logs.output)
            self.assertIn("each step pulls all rows of 'word.weight', 'bag.weight', and pushes those with a gradient; psd.torch.Embedding",
                          logs.output[0])
            run(local, make(local), several=not overlap)
            self.assert_close(mine, local)
        with self.assertNoLogs("psd", logging.INFO):
            self.of(torch.optim.SGD(local.parameters(), 0.1))
        self.assert_refused("the daemon has no SparseAdam", lambda: self.of(torch.optim.SparseAdam(mine.word.parameters())))

    def test_sparse_gradients_travel_as_the_rows_that_they_touch(self):
        class Words(nn.Module):
            def __init__(self):
                super().__init__()
                self.word, self.out = nn.Embedding(20000, 8, sparse=True), nn.Linear(8, 1)

            def forward(self, ids):
                return self.out(self.word(ids).mean(1)).squeeze(1)

        for dtype in (torch.float32, torch.bfloat16):
            model = Words().to(dtype)
            optimizer = self.of(torch.optim.SGD(model.parameters(), 0.1), transport="rpc")
            for ids in torch.randint(20000, (3, 8, 3), generator=torch.Generator().manual_seed(11)):
                before = optimizer.client.bytes_pushed
                optimizer.zero_grad()
                model(ids).square().mean().backward()
                optimizer.step()
                # 8 x 3 rows of 8 values with their places, and the head of the encoding
                self.assertLess(optimizer.client.bytes_pushed - before, 8 * 3 * 8 * 6 + 200)

    # --- Several models, loaders, cells -----------------------------------------------------------------------------

    def test_two_optimizers_at_two_addresses(self):
        def make():
            torch.manual_seed(10)
            return nn.ModuleDict({"generator": nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8)),
                                  "critic": nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))})

        def run(model, wrap):
            first, second = (wrap(torch.optim.Adam(model[part].parameters(), 1e-2)) for part in ("generator", "critic"))
            for x, _ in batches(20):
                noise = x[:, :2]
                second.zero_grad()
                real, fake = model["critic"](x + 2), model["critic"](model["generator"](noise).detach())
                (nn.functional.softplus(-real) + nn.functional.softplus(fake)).mean().backward()
                second.step()
                first.zero_grad()
                nn.functional.softplus(-model["critic"](model["generator"](noise))).mean().backward()
                first.step()
            return first, second

        mine, local = make(), make()
        made = run(mine, self.of)
        run(local, lambda optimizer: optimizer)
        self.assert_close(mine, local)
        for optimizer in made:
            self.assertEqual(optimizer.client.step, 20)

    def test_a_second_model_needs_a_second_daemon(self):
        for world in (None, {"min": 1, "max": 4}):
            daemon = self.open_daemon(world_size=world)
            first, second = nn.Linear(2, 3), nn.Linear(3, 1)
            self.of(torch.optim.SGD(first.parameters(), 0.1), daemon, rank=None, world_size=None)
            other = torch.optim.SGD(second.parameters(), 0.1)
            self.assert_refused("another model needs a daemon of its own", lambda: self.of(other, daemon, rank=None, world_size=None),
                                psd.ModelMismatch)

    def test_workers_of_a_loader(self):
        data = TensorDataset(*(torch.cat(parts) for parts in zip(*batches(4))))

        def run(start, workers):
            def train_from_loader(model, optimizer):
                loader = DataLoader(data, batch_size=16, num_workers=workers, multiprocessing_context=start, persistent_workers=True)
                for _ in range(2):
                    for x, y in loader:
                        optimizer.zero_grad()
                        nn.functional.mse_loss(model(x), y).backward()
                        optimizer.step()
                del loader
            return train_from_loader

        for start, workers in (("fork", 2), ("spawn", 1)):
            with self.subTest(start):
                optimizer, *_ = self.compare(run(start, workers))
                self.assertEqual(optimizer.client.step, 8)

    def test_a_cell_that_is_run_again(self):
        daemon = self.open_daemon()
        model = make_net()
        optimizer = self.of(adamw(model), daemon)
        train(model, optimizer, steps=3)
        trained = values_of(model)
        again = make_net()
        self.assert_refused("close", lambda: self.of(adamw(again), daemon), psd.RankTaken)  # a cell that makes the model as well
        self.assert_refused("is served by a psd.torch.Optimizer already: close.. that first", lambda: self.of(adamw(model), daemon))
        train(model, optimizer, steps=3)
        optimizer.close()
        optimizer = self.of(adamw(again), daemon)
        self.assert_close(again, model)
        self.assertFalse(torch.equal(again[0].weight, trained["0.weight"]))
        train(again, optimizer, steps=3)

    def test_ctrl_c_ends_a_step(self):
        for overlap in (False, True):
            model = make_net()
            optimizer = self.of(adamw(model), overlap=overlap)
            self.processes[-1].signal(signal.SIGSTOP)
            ctrl_c.check(self, f"step() of AdamW, overlap={overlap}", lambda: train(model, optimizer), optimizer.client.close)

    # --- Parameters that are frozen later -----------------------------------------------------------------------------

    def test_parameters_that_change_their_part_later_are_refused(self):
        def freeze(model, optimizer, inner):
            model[0].weight.requires_grad_(False)
            return lambda: model[0].weight.requires_grad_(True)

        def unfreeze(model, optimizer, inner):
            model[1].weight.requires_grad_(True)
            return lambda: model[1].weight.requires_grad_(False)

        def extend(model, optimizer, inner):
            inner.add_param_group({"params": [model[1].bias.requires_grad_(True)]})

            def undo():
                inner.param_groups.pop()
                model[1].bias.requires_grad_(False)
            return undo

        for change, message in ((freeze, "parameter '0.weight' requires no gradient any more.*freeze it before"),
                                (unfreeze, "parameter '1.weight' requires a gradient now.*unfreeze it before"),
                                (extend, "parameter '1.bias' requires a gradient now|has other param_groups, by its")):
            with self.subTest(change.__name__):
                model = make_net()
                model[1].requires_grad_(False)
                inner = torch.optim.SGD(model[0].parameters(), 0.05)
                inner.add_param_group({"params": model[3].parameters(), "lr": 0.1})
                inner.add_param_group({"params": [model[1].weight]})  # frozen, as Trainers of frameworks may add it
                optimizer = self.of(inner, model=model)
                self.assertEqual(list(optimizer.model.shapes), ["0.weight", "0.bias", "3.weight", "3.bias"])
                train(model, optimizer, steps=2)
                undo = change(model, optimizer, inner)
                self.assert_refused(message, optimizer.step)
                self.assertEqual(optimizer.client.step, 2, "nothing was pushed")
                undo()
                train(model, optimizer, steps=2)

    def run(self, result=None):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*lr_scheduler.step")  # a scheduler that sees no step()
            return super().run(result)

    def test_two_trainers_of_half_a_gpts_batch(self):
        """Under sync they train as one process does, with its decay groups and its warm-up and cosine."""
        steps, codes = 50, torch.randint(20, (400,), generator=torch.Generator().manual_seed(3))

        def made():
            torch.manual_seed(1)
            model = gpt.Gpt(20, 16, width=32)
            decayed, others = ([each for each in model.parameters() if (each.dim() >= 2) == matrix] for matrix in (True, False))
            return model, torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], betas=(0.9, 0.98))

        def learn(model, optimizer, share):
            for step in range(steps):
                for group in optimizer.param_groups:
                    group["lr"] = gpt.rate(step, steps, 3e-3)
                begins = torch.randint(380, (8, 1), generator=torch.Generator().manual_seed(step))[share]
                pieces = codes[begins + torch.arange(17)]
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten()).backward()
                optimizer.step()

        alone, plain = made()
        learn(alone, plain, slice(None))
        daemon = self.open_daemon(policy="sync", policy__start_trainers=2)
        pairs = [made() for _ in range(2)]

        def run(rank):
            model, optimizer = pairs[rank]
            with psd.torch.Optimizer(optimizer, daemon.address, rank=rank, world_size=2, samples=4) as served:
                learn(model, served, slice(4 * rank, 4 * rank + 4))

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(processes.WAIT_S)
        for model, _ in pairs:
            for name, value in model.named_parameters():
                wanted = alone.get_parameter(name)
                if name.endswith("mix.bias"):  # no loss depends on the keys' part: Adam's steps there follow the rounding
                    value, wanted = (torch.cat([each[:32], each[64:]]) for each in (value, wanted))
                torch.testing.assert_close(value, wanted, rtol=0, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


if __name__ == "__main__":
    processes.main()
