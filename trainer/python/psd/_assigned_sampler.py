"""psd.torch.AssignedSampler: a DataLoader's batches of the samples that the daemon assigns."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING

import torch

from ._psd import AssignedSamples
from .errors import Error, InvalidArgument

if TYPE_CHECKING:
    from .torch import Optimizer


class AssignedSampler(torch.utils.data.Sampler[list[int]]):
    """A batch sampler for torch's DataLoader: each sample of each epoch contributes to one gradient of one trainer,
    however fast trainers are, even if trainers join, leave or die. Samples of a trainer that has departed, or whose
    gradient was discarded, are assigned again.

        sampler = psd.torch.AssignedSampler(optimizer, data, batch_size=32, epochs=10)
        for inputs, labels in DataLoader(data, batch_sampler=sampler):      # all epochs; sampler.epoch is the current one
            …
            optimizer.step()                                                # after each batch, with its number of samples

    There is no len(), since the number of batches depends on the other trainers. Each batch needs one step(). If
    GradScaler skips the step because the gradient was not finite, or step() discards the gradient because values were
    loaded, the batch is repeated, but not with `ahead`, since the next one has been fetched by then. Used by the thread
    that makes the steps.
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
                raise InvalidArgument(f"an AssignedSampler has {name} of at least 1, not {value}")
        if ahead < 0:
            raise InvalidArgument(f"ahead is a number of batches, not {ahead}")
        self.batch_size, self.epochs, self.shuffle, self.seed, self.ahead = batch_size, epochs, shuffle, seed, ahead
        self.finished = False
        """Whether all samples of all epochs have been used."""
        self._optimizer = optimizer
        self._pending: collections.deque[AssignedSamples] = collections.deque()  # assigned, without a step() yet, in order
        self._newest: AssignedSamples | None = None
        self._skipped = False  # the gradient of the newest batch was not finite, and was cleared
        self._order = functools.lru_cache(maxsize=2)(self._order_of)
        optimizer._exchange.sampler = self

    @property
    def epoch(self) -> int:
        """The epoch, from 0, of the batch of the next step(), or of the newest batch."""
        assigned = self._pending[0] if self._pending else self._newest
        return 0 if assigned is None else assigned.epoch

    def __iter__(self) -> Iterator[list[int]]:
        for assigned in list(self._pending):  # left over from an abandoned pass
            yield self._indices(assigned)
        while (taken := self._next_batch()) is not None:
            yield self._indices(taken)

    def _next_batch(self) -> AssignedSamples | None:
        """The next batch; None if there is none, for now or for good."""
        if len(self._pending) > self.ahead:
            if self.ahead == 0 and (self._skipped or self._optimizer._has_non_finite_gradient()):
                self._skipped = False
                return self._pending[0]
            raise Error("the previous batch had no step(): each batch needs one. To accumulate gradients over several backward passes, "
                        "divide the batch. A DataLoader whose workers prefetch batches needs ahead=num_workers × "
                        "prefetch_factor")
        assigned = self._optimizer.client.take_samples(
            self.batch_size, self._samples, self.epochs, wait=not self._pending, ahead=len(self._pending),
            first_epoch=0 if self._newest is None else self._newest.epoch)
        if assigned.what != "range":
            self.finished = assigned.what == "finished"
            return None
        self._newest = assigned
        self._pending.append(assigned)
        return assigned

    def _before_zero_grad(self) -> None:
        """Called before gradients are set to zero."""
        self._skipped = self._skipped or bool(self._pending) and self._optimizer._has_non_finite_gradient()

    def _before_discard(self) -> None:
        """Called before gradients are discarded that no step() has pushed."""
        self._skipped = bool(self._pending)

    def _before_step(self) -> int | None:
        """Called when a push starts. Returns its number of samples; None: they were not assigned by the daemon."""
        self._skipped = False
        return self._pending.popleft().count if self._pending else None

    def _indices(self, assigned: AssignedSamples) -> list[int]:
        places = range(assigned.begin, assigned.begin + assigned.count)
        return self._order(assigned.epoch)[places.start:places.stop].tolist() if self.shuffle else list(places)

    def _order_of(self, epoch: int) -> torch.Tensor:
        """The order of samples in an epoch, which every trainer computes alike."""
        generator = torch.Generator().manual_seed((self.seed * 0x9e3779b97f4a7c15 + epoch) % 2**63)
        return torch.randperm(self._samples, generator=generator)
