"""psd.torch.EmbeddingBag, padding, and evaluation after close(): as with the modules of PyTorch."""

import copy
import io
import itertools

import processes
import served_models
import torch
from torch import nn

import psd
import psd.torch

IDS, DIM = 12, 3
SGD = '{"type":"sgd","lr":0.1}'  # momentum of a table's row changes only with its gradients, unlike in PyTorch


class Bags(nn.Module):
    """`weighs`: with weights per sample, which are trained as well."""

    def __init__(self, bag, weighs):
        super().__init__()
        torch.manual_seed(1)
        self.bag, self.out = bag, nn.Linear(DIM, 1)
        self.weights = nn.Parameter(torch.rand(IDS)) if weighs else None

    def forward(self, ids, offsets=None):
        return self.out(self.bag(ids, offsets, None if self.weights is None else self.weights[ids % IDS]).tanh()).squeeze(1)


def bags(steps=8):
    """Ids of bags, flat with offsets and as a matrix, in turn; some bags are empty."""
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        if step % 2:
            yield (torch.randint(IDS, (5, 4), generator=generator),)
        else:
            yield torch.randint(IDS, (20,), generator=generator), torch.tensor([0, 4, 4, 9, 20])


class PythonBags(served_models.ServedTest):
    def with_the_same_rows(self, mine, local):
        """The module's optimizer; `local` gets the rows that `mine` has at the daemon."""
        optimizer = self.served(mine, optimizer=SGD)
        bag, table = (mine.bag, local.bag) if isinstance(mine, Bags) else (mine[0], local[0])
        with torch.no_grad():
            for index in range(IDS):
                if index != table.padding_idx:
                    table.weight[index] = bag(*((torch.tensor([index]), torch.tensor([0])) if isinstance(bag, psd.torch.EmbeddingBag)
                                                else (torch.tensor(index),)))
        return optimizer

    def test_bags_take_the_steps_of_local_ones(self):
        for mode, padding, weighs in itertools.product(("sum", "mean", "max"), (None, 2), (False, True)):
            if weighs and mode != "sum":
                continue
            with self.subTest(mode, padding=padding, weighs=weighs):
                mine = Bags(psd.torch.EmbeddingBag("e", DIM, mode=mode, padding_idx=padding, initial="normal", scale=0.5), weighs)
                local = Bags(nn.EmbeddingBag(IDS, DIM, mode=mode, padding_idx=padding), weighs)
                optimizer = self.with_the_same_rows(mine, local)
                for model, steps in ((mine, optimizer), (local, torch.optim.SGD(local.parameters(), 0.1))):
                    for ids in bags():
                        steps.zero_grad()
                        scores = model(*ids)
                        nn.functional.mse_loss(scores, torch.ones_like(scores)).backward()
                        steps.step()
                for ids in bags():
                    torch.testing.assert_close(mine(*ids), local(*ids), rtol=1e-5, atol=1e-6)
                optimizer.close()
                for ids in bags():
                    torch.testing.assert_close(mine(*ids), local(*ids), rtol=1e-5, atol=1e-6)
        offsets = torch.tensor([0, 3, 7], dtype=torch.int32)
        ids = torch.arange(7, dtype=torch.int32)
        mine.bag.include_last_offset = local.bag.include_last_offset = True
        torch.testing.assert_close(mine.bag(ids, offsets), local.bag(ids, offsets))
        with self.assertRaisesRegex(psd.InvalidArgument, "^mode is 'median'; expected one of sum, mean, max$"):
            psd.torch.EmbeddingBag("e", DIM, mode="median")

    def test_padding_is_zeros_and_gets_no_gradient(self):
        for padding in (2, 0, -1, 1 << 40):
            with self.subTest(padding):
                mine = nn.Sequential(psd.torch.Embedding("e", DIM, padding_idx=padding, initial="normal", scale=0.5), nn.Linear(DIM, 1))
                whole = nn.Sequential(psd.torch.Embedding("e", DIM, initial="normal", scale=0.5), mine[1])
                ids = torch.tensor([[1, padding, 3], [padding, padding, 1]])
                daemon = self.daemon(policy="locked", optimizer=SGD)
                self.served(whole, daemon).close()
                before = whole[0](ids).detach()
                self.assertTrue(before.all())
                optimizer = self.served(mine, daemon)
                for _ in range(2):
                    optimizer.zero_grad()
                    rows = mine[0](ids)
                    self.assertEqual(rows.detach().eq(0).all(2).tolist(), ids.eq(padding).tolist())
                    mine[1](rows).square().sum().backward()
                    self.assertEqual(len(mine[0].rows), 2)
                    optimizer.step()
                self.assertFalse(mine[0](torch.full((2, 2), padding)).any())
                changed = whole[0](ids).ne(before).any(2)
                self.assertEqual(changed.tolist(), ids.ne(padding).tolist(), "the table's row of that id stays")
        for wrong, error in ((1.5, TypeError), (1 << 63, psd.InvalidArgument)):
            with self.assertRaisesRegex(error, "^padding_idx is .*; expected a whole number"):
                psd.torch.Embedding("e", DIM, padding_idx=wrong)

    def test_padding_takes_the_steps_of_a_local_embedding(self):
        mine = nn.Sequential(psd.torch.Embedding("e", DIM, padding_idx=2, initial="normal", scale=0.5), nn.Linear(DIM, 1))
        local = nn.Sequential(nn.Embedding(IDS, DIM, padding_idx=2), nn.Linear(DIM, 1))
        local[1].load_state_dict(mine[1].state_dict())
        optimizer = self.with_the_same_rows(mine, local)
        for model, steps in ((mine, optimizer), (local, torch.optim.SGD(local.parameters(), 0.1))):
            for ids, *_ in bags():
                steps.zero_grad()
                model(ids).square().mean().backward()
                steps.step()
        torch.testing.assert_close(mine[0](torch.arange(IDS)), local[0].weight, rtol=1e-5, atol=1e-6)

    def test_copies_and_files_of_bags(self):
        bag = psd.torch.EmbeddingBag("e", DIM, mode="sum", padding_idx=-3)
        saved = io.BytesIO()
        torch.save(bag, saved)
        saved.seek(0)
        for each in (torch.load(saved), copy.deepcopy(bag)):
            self.assertEqual((repr(each), each.include_last_offset), ("EmbeddingBag('e', dim=3, padding_idx=-3, mode='sum')", False))

    def test_rows_are_read_after_close(self):
        listen = (self.unix_address(),)
        daemon = self.daemon(policy="locked", listen=listen, optimizer=SGD)
        model = nn.Sequential(psd.torch.Embedding("e", DIM, initial="normal", scale=0.5), nn.Linear(DIM, 1))
        second = nn.Sequential(psd.torch.Embedding("e", DIM, initial="normal", scale=0.5), nn.Linear(DIM, 1))
        ids = torch.tensor([[1, 2], [2, 3]])
        with self.served(model, daemon) as optimizer:
            copied = copy.deepcopy(model)
            model(ids).sum().backward()
            optimizer.step()
            trained = model(ids).detach()
        del optimizer
        self.assertTrue(torch.equal(model.eval()(ids), trained))
        self.assertEqual(copied[0](ids).shape, (2, 2, DIM))
        status = daemon.until_status("the trainer has left", lambda status: not status["trainers"])
        self.assertEqual(status["trainers_lost"], 0)
        model(ids).sum().backward()  # gradients of rows are discarded
        self.assertEqual((len(model[0].rows), model[0].rows.grad), (0, None))
        rows = model[0](ids).detach()
        del model
        with self.served(second, daemon) as optimizer:
            second[0](ids).sum().backward()
            optimizer.step()
        self.assertFalse(torch.equal(copied[0](ids), rows), "what others have trained is read")
        again = self.served(copied, daemon, retry_timeout=0.5)
        copied[0](ids).sum().backward()
        again.step()
        again.close()
        before = copied[0](ids).detach()
        daemon.kill()
        with self.assertRaisesRegex(psd.Error, r"^embedding 'e' reads its rows at the daemon, also after close\(\) of the optimizer: "):
            copied[0](ids)
        daemon = self.daemon(policy="locked", listen=listen, optimizer=SGD)
        second[0].rows.requires_grad_(False)
        self.served(second, daemon).close()
        self.assertEqual(copied[0](ids).shape, before.shape)


if __name__ == "__main__":
    processes.main()
