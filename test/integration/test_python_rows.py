"""psd.torch.Embedding: code that handles a model's parameters handles rows of tables too, like those of nn.Embedding."""

import copy
import gc
import io

import processes
import torch
import torch.utils.checkpoint
from torch import nn

import psd
import psd.torch

RATE = 0.1
IDS = 12


class Net(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embedding, self.out = embedding, nn.Linear(3, 1, bias=False)
        nn.init.constant_(self.out.weight, 0.5)

    def forward(self, ids):
        return self.out(self.embedding(ids).tanh()).squeeze(-1)


def batches(steps=6, parts=2):
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        yield [(torch.randint(IDS, (4, 2), generator=generator), torch.randn(4, 2, generator=generator)) for _ in range(parts)]


def loss_of(model, ids, wanted):
    return nn.functional.mse_loss(model(ids), wanted)


def plain(model, optimizer, parts):
    optimizer.zero_grad()
    for part in parts:
        loss_of(model, *part).backward()
    optimizer.step()


def cleared_by_module(set_to_none):
    def step(model, optimizer, parts):
        loss_of(model, *parts[0]).backward()  # abandoned
        model.zero_grad(set_to_none=set_to_none)
        loss_of(model, *parts[1]).backward()
        optimizer.step()
        model.zero_grad(set_to_none=set_to_none)
    return step


def cleared_before_backward(model, optimizer, parts):
    loss = loss_of(model, *parts[0]) + loss_of(model, *parts[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def changed(change):
    def step(model, optimizer, parts):
        optimizer.zero_grad()
        for part in parts:
            loss_of(model, *part).backward()
            change(model)
        optimizer.step()
    return step


def scale_gradients(model):
    for parameter in model.parameters():
        parameter.grad.mul_(0.5)


def replace_gradients(model):
    for parameter in model.parameters():
        parameter.grad = parameter.grad.sign()


def scaled(model, optimizer, parts, scaler, clips):
    optimizer.zero_grad()
    for part in parts:
        scaler.scale(loss_of(model, *part)).backward()
    if clips:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    scaler.step(optimizer)
    scaler.update()


class PythonRows(processes.ProcessTest):
    def served(self, model, daemon=None, rank=0, world_size=1, **options):
        daemon = daemon or self.daemon(policy="locked", optimizer=f'{{"type":"sgd","lr":{RATE}}}')
        optimizer = psd.torch.Optimizer(model, daemon.address, rank=rank, world_size=world_size, **options)
        self.addCleanup(optimizer.client.close)
        return optimizer

    def both(self):
        """A model with rows at a daemon and a local one with the same values, each with its optimizer."""
        mine, local = Net(psd.torch.Embedding("e", 3, initial="normal", scale=0.5)), Net(nn.Embedding(IDS, 3))
        optimizer = self.served(mine)
        with torch.no_grad():
            local.embedding.weight.copy_(mine.embedding(torch.arange(IDS)))
        return (mine, optimizer), (local, torch.optim.SGD(local.parameters(), RATE))

    def assert_same(self, mine, local):
        with torch.no_grad():
            torch.testing.assert_close(mine.embedding(torch.arange(IDS)), local.embedding.weight, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(mine.out.weight, local.out.weight, rtol=1e-5, atol=1e-6)

    def test_what_walks_over_parameters_reaches_rows(self):
        ways = {"accumulation": plain, "module.zero_grad()": cleared_by_module(True),
                "module.zero_grad(set_to_none=False)": cleared_by_module(False), "zero_grad() before backward()": cleared_before_backward,
                "clip_grad_norm_": changed(lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.05)),
                "clip_grad_value_": changed(lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.01)),
                "grad.mul_": changed(scale_gradients), "grad = ": changed(replace_gradients)}
        for way, step in ways.items():
            with self.subTest(way):
                pairs = self.both()
                for model, optimizer in pairs:
                    for parts in batches():
                        step(model, optimizer, parts)
                self.assert_same(pairs[0][0], pairs[1][0])

    def test_a_scaler_reaches_rows(self):
        for clips in (False, True):
            with self.subTest(clips=clips):
                pairs = self.both()
                for model, optimizer in pairs:
                    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
                    for parts in batches():
                        scaled(model, optimizer, parts, scaler, clips)
                self.assert_same(pairs[0][0], pairs[1][0])

    def test_a_scaler_skips_a_step_of_which_only_a_row_is_infinite(self):
        model = Net(psd.torch.Embedding("e", 3, initial="zero"))
        optimizer, scaler = self.served(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
        ids = torch.tensor([1])
        scaler.scale(model.embedding(ids).sum() * float("inf") + model.out.weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        self.assertEqual((scaler.get_scale(), optimizer.client.step), (512, 0))
        optimizer.zero_grad()
        scaler.scale(model.embedding(ids).sum()).backward()
        scaler.step(optimizer)
        torch.testing.assert_close(model.embedding(ids).detach(), torch.full((1, 3), -RATE))

    def test_frozen_rows_stay(self):
        model = Net(psd.torch.Embedding("e", 3, initial="zero"))
        optimizer = self.served(model)
        model.embedding.requires_grad_(False)
        plain(model, optimizer, next(batches()))
        self.assertEqual(model.embedding(torch.arange(IDS)).abs().sum().item(), 0)
        model.embedding.requires_grad_(True)
        plain(model, optimizer, next(batches()))
        rows = model.embedding(torch.arange(IDS)).detach()
        self.assertGreater(rows.abs().sum().item(), 0)
        loss = loss_of(model, *next(batches())[0])
        model.embedding.requires_grad_(False)  # between the passes
        loss.backward()
        optimizer.step()
        self.assertTrue(torch.equal(model.embedding(torch.arange(IDS)), rows))

    def test_a_compiled_step_of_rows_takes_the_steps_of_a_local_optimizer(self):
        pairs = self.both()
        for model, optimizer in pairs:
            def step(parts, model=model, optimizer=optimizer):
                optimizer.zero_grad()
                for part in parts:
                    loss_of(model, *part).backward()
                optimizer.step()

            compiled = torch.compile(step, backend="aot_eager")
            for parts in batches():
                compiled(parts)
        self.assert_same(pairs[0][0], pairs[1][0])

    def test_what_cannot_reach_rows_is_refused(self):
        model = Net(psd.torch.Embedding("e", 3, initial="zero"))
        model.embedding.rows.register_hook(lambda gradient: gradient.clamp(-1, 1))
        optimizer = self.served(model)
        part = next(batches())[0]
        with self.assertRaisesRegex(psd.InvalidArgument, "a hook is registered on the parameter of table 'e'"):
            loss_of(model, *part).backward()
        optimizer.close()

        model = Net(psd.torch.Embedding("e", 3, initial="zero"))
        optimizer = self.served(model)
        with self.assertRaisesRegex(psd.InvalidArgument, "the parameter of table 'e' is in a loss"):
            (loss_of(model, *part) + sum(parameter.square().sum() for parameter in model.parameters())).backward()
        optimizer.zero_grad()
        with torch.no_grad():
            model.embedding.rows.clamp_(-0.01, 0.01)  # empty or not
        loss_of(model, *part).backward()
        with self.assertRaisesRegex(psd.InvalidArgument, "rows of table 'e' were changed in place"):
            optimizer.step()
        self.assertEqual(optimizer.client.step, 0)
        optimizer.step()
        with self.assertRaisesRegex(psd.InvalidArgument, "DistributedDataParallel already"):
            with torch_distributed():
                psd.torch.Optimizer(nn.parallel.DistributedDataParallel(Net(psd.torch.Embedding("e", 3))), "tcp://localhost:1")

    def test_distributed_data_parallel_passes_rows_by(self):
        with torch_distributed():
            pairs = self.both()
            for model, optimizer in pairs:
                wrapped = nn.parallel.DistributedDataParallel(model)  # writes every parameter, with its current values
                for parts in batches():
                    plain(wrapped, optimizer, parts)
            self.assert_same(pairs[0][0], pairs[1][0])

    def test_scoring_keeps_nothing(self):
        model = Net(psd.torch.Embedding("e", 3))
        optimizer = self.served(model)
        rows = optimizer._lookups[0]
        for _ in range(3):
            model(torch.arange(IDS)).sum().item()
        self.assertEqual((rows._held(), rows._passes), ([], []))
        loss = model(torch.arange(IDS)).sum()
        self.assertEqual(len(rows._held()), 1)
        loss.backward()
        self.assertEqual(len(model.embedding.rows), IDS)
        optimizer.step()
        del loss
        self.assertEqual((rows._held(), len(model.embedding.rows), model.embedding.rows.grad), ([], 0, None))

    def test_a_step_sees_one_version_of_a_row(self):
        daemon = self.daemon(policy="locked", optimizer='{"type":"sgd","lr":1.0}')
        models = [Net(psd.torch.Embedding("e", 3, initial="zero")) for _ in range(2)]
        optimizers = [self.served(model, daemon, rank, 2) for rank, model in enumerate(models)]
        ids = torch.tensor([1, 2])

        def others_step():
            optimizers[1].zero_grad()
            models[1].embedding(ids).sum().backward()
            optimizers[1].step()

        def twice(function):
            seen.clear()
            return torch.utils.checkpoint.checkpoint(function, use_reentrant=False)

        seen = []

        def squares():
            rows = models[0].embedding(ids)
            seen.append(rows.detach().clone())
            return rows.square().sum()

        others_step()  # to −1
        first = models[0].embedding(ids[:1])
        others_step()
        second = models[0].embedding(ids)
        self.assertEqual(second[:, 0].tolist(), [-1, -2])  # the first row as read by the previous pass
        (first.sum() + second.sum()).backward()
        others_step()
        self.assertEqual(models[0].embedding(ids)[:, 0].tolist(), [-1, -2])  # even after the passes' graphs were freed
        optimizers[0].step()
        self.assertEqual(models[0].embedding(ids)[:, 0].tolist(), [-5, -4])  # gradients of 2 and 1

        optimizers[0].zero_grad()
        loss = twice(squares)
        others_step()
        loss.backward()
        self.assertEqual(len(seen), 2, "computed again")
        self.assertTrue(torch.equal(*seen))
        self.assertEqual(models[0].embedding.rows.grad[:, 0].tolist(), [-10, -8])
        optimizers[0].zero_grad()
        scale = torch.ones((), requires_grad=True)
        loss = torch.utils.checkpoint.checkpoint(lambda scale: squares() * scale, scale, use_reentrant=True)
        with self.assertRaisesRegex(psd.InvalidArgument, "'e' is read again in a backward pass.*use_reentrant=False"):
            loss.backward()

    def test_an_optimizer_that_the_program_drops_leaves(self):
        model, daemon = Net(psd.torch.Embedding("e", 3)), self.daemon(policy="locked", optimizer='{"type":"sgd","lr":1}')
        optimizer = psd.torch.Optimizer(model, daemon.address, rank=0, world_size=1)
        plain(model, optimizer, next(batches()))
        del optimizer
        gc.collect()
        optimizer = self.served(model, daemon)  # the rank is free
        plain(model, optimizer, next(batches()))

    def test_ids_are_tensors(self):
        model = Net(psd.torch.Embedding("e", 3))
        _optimizer = self.served(model)
        with self.assertRaisesRegex(TypeError, r"^ids of table 'e' is \[1, 2\]; expected a tensor of integers$"):
            model.embedding([1, 2])

    def test_modules_of_one_table_and_several_passes(self):
        class Pair(nn.Module):
            def __init__(self, one, other):
                super().__init__()
                self.one, self.other = one, other

            def forward(self, ids):
                return (self.one(ids) * self.other(ids.flip(0))).sum()

        mine = Pair(*(psd.torch.Embedding("e", 3, initial="normal", scale=0.5) for _ in range(2)))
        optimizer = self.served(mine)
        self.assertEqual([name for name, _ in mine.named_parameters()], ["one.rows"])
        table = nn.Embedding(IDS, 3)
        with torch.no_grad():
            table.weight.copy_(mine.one(torch.arange(IDS)))
        local = Pair(table, table)
        for model, steps in ((mine, optimizer), (local, torch.optim.SGD(local.parameters(), RATE))):
            for ids in (torch.tensor([1, 2, 2]), torch.tensor([2, 5, 7])):
                steps.zero_grad()
                model(ids).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                steps.step()
        with torch.no_grad():
            torch.testing.assert_close(mine.other(torch.arange(IDS)), table.weight, rtol=1e-5, atol=1e-6)

    def test_copies_and_files(self):
        model = nn.Sequential(psd.torch.Embedding("e", 3, initial="normal"), nn.Linear(3, 1))
        optimizer = self.served(model)
        ids = torch.arange(4)
        model(ids).sum().backward()
        self.assertEqual(list(model.state_dict()), ["1.weight", "1.bias"])
        copied = copy.deepcopy(model)
        self.assertTrue(torch.equal(copied(ids), model(ids)))
        gradients = model[0].rows.grad.clone()
        copied(ids).sum().backward()
        self.assertTrue(torch.equal(model[0].rows.grad, gradients), "a copy's gradients are not this optimizer's")
        average = torch.optim.swa_utils.AveragedModel(model)
        for _ in range(2):
            optimizer.step()
            average.update_parameters(model)
        self.assertEqual(average(ids).shape, (4, 1))
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        with torch.serialization.safe_globals([nn.Sequential, nn.Linear]):
            loaded = torch.load(saved)  # weights_only, as by default in torch
        self.assertEqual((loaded[0].table, len(loaded[0].rows)), (model[0].table, 0))
        self.assertTrue(torch.equal(loaded[1].weight, model[1].weight))
        with self.assertRaisesRegex(psd.InvalidArgument, "'e' has no daemon"):
            loaded(ids)
        model.load_state_dict({}, strict=False)
        optimizer.close()
        model.load_state_dict(copied.state_dict())
        model(ids)
        again = self.served(model)
        self.assertEqual(model(ids).shape, (4, 1))
        again.close()


class torch_distributed:
    """A process group of this process alone."""

    def __enter__(self):
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)

    def __exit__(self, *_):
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    processes.main()
