"""psd.torch.DealtSampler: a DataLoader's batches of the samples that the daemon assigns."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING

import torch

from ._psd import DealtSamples
from .errors import Error, InvalidArgument

if TYPE_CHECKING:
    from .torch import Optimizer


class DealtSampler(torch.utils.data.Sampler[list[int]]):
    """A batch sampler for torch's DataLoader: each sample of each epoch contributes to one gradient of one trainer,
    however fast trainers are, even if trainers join, leave or die. Samples of a trainer that has departed, or whose
    gradient was discarded, are assigned again.

        sampler = psd.torch.DealtSampler(optimizer, data, batch_size=32, epochs=10)
        for inputs, labels in DataLoader(data, batch_sampler=sampler):      # all epochs; sampler.epoch is the current one
            …
            optimizer.step()                                                # after each batch, with its number of samples

    Each batch needs one step(). If GradScaler skips the step because the gradient was not finite, the batch is
    repeated, but not with `ahead`, since the next one has been fetched by then. Used by the thread that makes the
    steps.
    """

    def __init__(self, optimizer: Optimizer, data: Sized | int, batch_size: int, epochs: int, *, shuffle: bool = True,
                 seed: int = 0, ahead: int = 0):
        """`data`: the data set, or its number of samples. `data`, `epochs`, `shuffle` and `seed` must be the same for
        all trainers. `ahead`: the number of batches that the DataLoader's workers prefetch, num_workers ×
        prefetch_factor. With `ahead`, a pass over the DataLoader ends while other trainers still work on the remaining
        samples; repeat it with `while not sampler.finished:`. The first batch of the next pass waits for samples that
        become available again."""
        self._samples = data if isinstance(data, int) else len(data)
        for name, value in (("data", self._samples), ("batch_size", batch_size), ("epochs", epochs)):
            if value < 1:
                raise InvalidArgument(f"a DealtSampler has {name} of at least 1, not {value}")
        if ahead < 0:
            raise InvalidArgument(f"ahead is a number of batches, not {ahead}")
        self.batch_size, self.epochs, self.shuffle, self.seed, self.ahead = batch_size, epochs, shuffle, seed, ahead
        self.finished = False
        """Whether all samples of all epochs have been used."""
        self._optimizer = optimizer
        self._out: collections.deque[DealtSamples] = collections.deque()  # assigned, without a step() yet, in order
        self._newest: DealtSamples | None = None
        self._skipped = False  # the gradient of the newest batch was not finite, and was cleared
        self._order = functools.lru_cache(maxsize=2)(self._order_of)
        optimizer._exchange.sampler = self

    @property
    def epoch(self) -> int:
        """The epoch, from 0, of the batch of the next step(), or of the newest batch."""
        dealt = self._out[0] if self._out else self._newest
        return 0 if dealt is None else dealt.epoch

    def __iter__(self) -> Iterator[list[int]]:
        for dealt in list(self._out):  # left over from an abandoned pass
            yield self._indices(dealt)
        while (taken := self._take()) is not None:
            yield self._indices(taken)

    def _take(self) -> DealtSamples | None:
        """The next batch; None if there is none, for now or for good."""
        if len(self._out) > self.ahead:
            if self.ahead == 0 and (self._skipped or self._optimizer._has_non_finite_gradient()):
                self._skipped = False
                return self._out[0]
            raise Error("the previous batch had no step(): each batch needs one. To accumulate gradients over several backward passes, "
                        "divide the batch. A DataLoader whose workers prefetch batches needs ahead=num_workers × "
                        "prefetch_factor")
        dealt = self._optimizer.client.take_samples(
            self.batch_size, self._samples, self.epochs, wait=not self._out, ahead=len(self._out),
            first_epoch=0 if self._newest is None else self._newest.epoch)
        if dealt.what != "range":
            self.finished = dealt.what == "finished"
            return None
        self._newest = dealt
        self._out.append(dealt)
        return dealt

    def _clearing(self) -> None:
        """Called before gradients are set to zero."""
        self._skipped = self._skipped or bool(self._out) and self._optimizer._has_non_finite_gradient()

    def _stepping(self) -> int | None:
        """Called when a push starts. Returns its number of samples; None: they were not assigned by the daemon."""
        self._skipped = False
        return self._out.popleft().count if self._out else None

    def _indices(self, dealt: DealtSamples) -> list[int]:
        places = range(dealt.begin, dealt.begin + dealt.count)
        return self._order(dealt.epoch)[places.start:places.stop].tolist() if self.shuffle else list(places)

    def _order_of(self, epoch: int) -> torch.Tensor:
        """The order of samples in an epoch, which every trainer computes alike."""
        generator = torch.Generator().manual_seed((self.seed * 0x9e3779b97f4a7c15 + epoch) % 2**63)
        return torch.randperm(self._samples, generator=generator)
