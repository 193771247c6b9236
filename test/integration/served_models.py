"""Models that a daemon serves through psd.torch, compared with local ones."""

import processes
import torch

import psd.torch

TOLERANCE = 1e-5
SGD = '{"type":"sgd","lr":0.05,"momentum":0.9}'


class ServedTest(processes.ProcessTest):
    def served(self, model, daemon=None, optimizer=SGD, kind=psd.torch.Optimizer, **options):
        """A psd optimizer for the model, as the only trainer of its daemon."""
        daemon = daemon or self.daemon(policy="locked", optimizer=optimizer)
        served = kind(model, daemon.address, **{"rank": 0, "world_size": 1, **options})
        self.addCleanup(served.client.close)
        return served

    def assert_same(self, mine, other):
        for (name, one), (_, two) in zip(mine.named_parameters(), other.named_parameters()):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")

    def open_daemon(self, **settings):
        """A daemon whose configuration has no optimizer."""
        return self.daemon(**{"policy": "locked", "optimizer": None, **settings})

    def of(self, optimizer, daemon=None, model=None, **options):
        """A psd.torch.Optimizer of a torch.optim optimizer, as the only trainer."""
        def kind(optimizer, address, **options):
            return psd.torch.Optimizer(optimizer, address, model=model, **options)

        return self.served(optimizer, daemon or self.open_daemon(), kind=kind, **options)

    def assert_close(self, mine, local, tolerance=TOLERANCE):
        for (name, one), (_, two) in zip(mine.named_parameters(), local.named_parameters()):
            self.assertLessEqual(float((one - two).detach().abs().max()), tolerance, name)
