"""Learners of psd.torch.DiLoCo for tests with real daemons."""

import processes
import torch
from torch import nn

import psd.torch

PERIOD = 5
OUTER = '{"type":"sgd","lr":0.7,"momentum":0.9,"nesterov":true}'


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def batches(count, seed=2):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(32, 8, generator=generator)
        yield x, x.sum(1, keepdim=True)


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


class LearnerTest(processes.ProcessTest):
    def diloco(self, optimizer=OUTER, **options):
        settings = {key: options.pop(key) for key in ("listen", "durability", "daemons", "index", "groups") if key in options}
        keys = {f"policy__{key}": value for key, value in options.items()}
        return self.daemon(policy="diloco", optimizer=optimizer, policy__period=PERIOD, **settings, **keys)

    def two(self, name="two", only=(0, 1), **options):
        """The two daemons that serve the model together, or only those in `only`; the cut is within the first weight."""
        addresses = [self.unix_address(f"{name}-{i}.sock") for i in range(2)]
        return [self.diloco(listen=(addresses[i],), daemons=addresses, index=i, round_timeout_ms=600_000,
                            durability={"type": "log", "path": str(self.folder / f"{name}-{i}")}, **options) for i in only]

    def learner(self, daemon, model, inner, **options):
        learner = psd.torch.DiLoCo(model, inner, daemon.address, **options)
        self.addCleanup(learner.client.close)
        return learner
