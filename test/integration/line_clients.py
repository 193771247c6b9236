"""Python clients for the line model, for tests with a real daemon."""

import processes

import psd

LINE = psd.Model("line", {"weight": (1,), "bias": ()})


class LineTest(processes.ProcessTest):
    def client(self, daemon, **options):
        client = psd.Client(daemon.address, **options)
        self.addCleanup(client.close)
        return client

    def joined(self, daemon, model=LINE, rank=0, world_size=1, **options):
        client = self.client(daemon, **options)
        client.join(model, model.zeros(), rank, world_size)
        return client
