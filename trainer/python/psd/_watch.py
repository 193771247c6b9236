"""Notices parameters that something else than a pull has written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_WHOLE = 16384  # elements up to which all values are compared
_WINDOW = 1024  # of more, at least as many side by side in each step
_PARTS = 2048  # and at least one part of so many
_SPREAD = 512  # and so many that are spread over all parameters
_OF_EACH = 64  # at most
_ROWS = 8  # of parameters in memory of their own, as many in each step


class Watch:
    """What the served parameters were after the newest pull. Versions tell of what PyTorch writes, but not of writes through
    `.data`: for these values are compared, all of a small model, else some of each parameter and a window that moves on with each step. Used by the thread that makes the steps."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], flat: np.ndarray | torch.Tensor, value_of: Mapping[str, torch.Tensor],
                 places: Mapping[str, slice]):
        """`flat`: the array of the newest pull, `value_of` its views, `places` where they are."""
        self._parameters, self._value_of = parameters, value_of
        self._values: np.ndarray | torch.Tensor = flat
        self._names = list(parameters)
        self._begins = np.array([places[key].start for key in self._names], np.int64)
        self._each = min(_OF_EACH, max(1, _SPREAD // max(1, len(self._names))))
        self._sizes = np.array([parameter.numel() for parameter in parameters.values()], np.int64)[:, None]
        self._spread = np.arange(self._each) * self._sizes // self._each
        self._window = max(_WINDOW, len(flat) // _PARTS)
        self._step = 0
        self._kept = b""
        self._versions: list[int] = []
        self._flat_memory = [value.data_ptr() for value in value_of.values()]
        self._memory: list[int] = []
        self._own: list[str] = []  # those in memory of their own that no other process writes
        self.elsewhere: list[str] = []
        """Those in memory of their own, to which a pull is copied."""
        self._look()

    def note(self) -> None:
        """The parameters hold what a pull has brought."""
        self._step += 1
        self._kept = self._sample()
        self._versions = [parameter._version for parameter in self._parameters.values()]

    def changed(self) -> str | None:
        """The name of a parameter whose values are others than after the pull, as far as these are compared."""
        if (now := self._sample()) != self._kept:
            place = int(np.flatnonzero(np.frombuffer(now, np.int32) != np.frombuffer(self._kept, np.int32))[0])
            begin, end = self._span()
            if place >= end - begin:
                return self._names[(place - end + begin) // self._each]
            return self._names[int(np.searchsorted(self._begins, begin + place, "right")) - 1]
        for key in self._look():
            if not self.holds(key, self._value_of[key]):
                return key
        first = self._step * _ROWS
        for index in range(min(_ROWS, len(self._own))):
            key = self._own[(first + index) % len(self._own)]
            if not self._row_holds(self._parameters[key], self._value_of[key]):
                return key
        return None

    def written(self) -> list[str]:
        """The names of those that PyTorch has written, with other values or not."""
        versions = [parameter._version for parameter in self._parameters.values()]
        if versions == self._versions:
            return []
        return [key for key, version, noted in zip(self._names, versions, self._versions) if version != noted]

    def holds(self, key: str, values: torch.Tensor) -> bool:
        """Whether a parameter has exactly these values."""
        parameter = self._parameters[key].detach()
        values = values.to(parameter.device)
        return torch.equal(parameter, values) or bool(((parameter == values) | (parameter.isnan() & values.isnan())).all())

    def _look(self) -> list[str]:
        """Where the parameters are; the names of those that have been elsewhere."""
        memory = [parameter.data_ptr() for parameter in self._parameters.values()]
        if memory == self._memory:
            return []
        moved = [key for key, now, before in zip(self._names, memory, self._memory or memory) if now != before]
        self._memory = memory
        self.elsewhere = [key for key, now, flat in zip(self._names, memory, self._flat_memory) if now != flat]
        self._own = [key for key in self.elsewhere if not is_shared(self._parameters[key])]
        return moved

    def _span(self) -> tuple[int, int]:
        """Of the values that are compared in this step: all, or a window that moves on."""
        size = len(self._values)
        if size <= _WHOLE:
            return 0, size
        begin = self._step % -(-size // self._window) * self._window
        return begin, min(begin + self._window, size)

    def _sample(self) -> bytes:
        """The values of the span, and some of each parameter where that is not all."""
        begin, end = self._span()
        parts = [self._values[begin:end]]
        if len(parts[0]) < len(self._values):
            places = (self._begins[:, None] + (self._step + self._spread) % self._sizes).ravel()
            parts.append(self._values[places if isinstance(self._values, np.ndarray) else torch.from_numpy(places).to(self._values.device)])
        arrays = [part if isinstance(part, np.ndarray) else part.cpu().numpy() for part in parts]
        return b"".join(array.tobytes() for array in arrays)

    def _row_holds(self, parameter: torch.Tensor, values: torch.Tensor) -> bool:
        if parameter.dim():
            row = self._step % len(parameter)
            parameter, values = parameter[row], values[row]
        return torch.equal(parameter.detach(), values.to(parameter.device))


def is_shared(parameter: torch.Tensor) -> bool:
    """With other processes, which write it too."""
    return parameter.device.type == "cpu" and parameter.is_shared()
