"""Detects parameters that something other than a pull has written."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from . import _dtypes

_WHOLE = 16384  # models up to this many elements are compared whole
_WINDOW = 1024  # smallest window of a larger model: adjacent elements that are compared in one step
_PARTS = 2048  # the window is at least 1 / _PARTS of the model
_SPREAD = 512  # elements per step that are sampled from all parameters together
_PER_PARAMETER = 64  # at most this many of them from one parameter
_ROWS = 8  # parameters with memory of their own that are compared per step, one row of each


class Watch:
    """Compares the served parameters with their values after the last pull. PyTorch's version counters count writes,
    except writes through `.data`. To detect those, values are compared: all of a small model, otherwise some of each
    parameter and a window that moves with each step. Used by the thread that makes the steps."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], flat: np.ndarray | torch.Tensor, value_of: Mapping[str, torch.Tensor]):
        """`flat`: the array of the last pull; `value_of`: its views, by parameter."""
        self._parameters, self._value_of = parameters, value_of
        # Compared in units of an element, or of 16 bits in an array of elements of several dtypes.
        native = _dtypes.is_native(flat)
        self._unit = np.dtype(np.int16 if native else np.int32)
        self._values: np.ndarray | torch.Tensor = flat
        if native:
            self._values = flat.view(torch.int16) if isinstance(flat, torch.Tensor) else flat.view(np.int16)
        self._names = list(parameters)
        begin = flat.data_ptr() if isinstance(flat, torch.Tensor) else flat.ctypes.data
        self._begins = np.array([value_of[key].data_ptr() - begin for key in self._names], np.int64) // self._unit.itemsize
        self._each = min(_PER_PARAMETER, max(1, _SPREAD // max(1, len(self._names))))
        self._sizes = np.array([value_of[key].nbytes // self._unit.itemsize for key in self._names], np.int64)[:, None]
        self._spread = np.arange(self._each) * self._sizes // self._each
        self._window = max(_WINDOW, len(self._values) // _PARTS)
        self._step = 0
        self._kept = b""
        self.versions: list[int] = []
        """The parameters' version counters after the pull."""
        self._flat_memory = [value.data_ptr() for value in value_of.values()]
        self._memory: list[int] = []
        self._own: list[str] = []  # parameters with memory of their own that no other process writes
        self.elsewhere: list[str] = []
        """Parameters with memory of their own, into which pulls are copied."""
        self._record_memory()

    def note(self) -> None:
        """Records that the parameters hold the values of a pull."""
        self._step += 1
        self._kept = self._sample()
        self.versions = [parameter._version for parameter in self._parameters.values()]

    def changed(self) -> str | None:
        """The name of a parameter whose compared values differ from those after the pull; None if there is none."""
        if (now := self._sample()) != self._kept:
            place = int(np.flatnonzero(np.frombuffer(now, self._unit) != np.frombuffer(self._kept, self._unit))[0])
            begin, end = self._span()
            if place >= end - begin:
                return self._names[(place - end + begin) // self._each]
            return self._names[int(np.searchsorted(self._begins, begin + place, "right")) - 1]
        for key in self._record_memory():
            if not self.holds(key, self._value_of[key]):
                return key
        first = self._step * _ROWS
        for index in range(min(_ROWS, len(self._own))):
            key = self._own[(first + index) % len(self._own)]
            if not self._row_holds(self._parameters[key], self._value_of[key]):
                return key
        return None

    def written(self) -> list[str]:
        """The names of parameters that PyTorch has written since the pull, whether or not their values changed."""
        versions = [parameter._version for parameter in self._parameters.values()]
        if versions == self.versions:
            return []
        return [key for key, version, noted in zip(self._names, versions, self.versions) if version != noted]

    def holds(self, key: str, values: torch.Tensor) -> bool:
        """Whether a parameter has exactly these values."""
        parameter = self._parameters[key].detach()
        values = values.to(parameter.device)
        return torch.equal(parameter, values) or bool(((parameter == values) | (parameter.isnan() & values.isnan())).all())

    def _record_memory(self) -> list[str]:
        """Records the parameters' memory addresses; returns the names of those whose memory was replaced."""
        memory = [parameter.data_ptr() for parameter in self._parameters.values()]
        if memory == self._memory:
            return []
        moved = [key for key, now, before in zip(self._names, memory, self._memory or memory) if now != before]
        self._memory = memory
        self.elsewhere = [key for key, now, flat in zip(self._names, memory, self._flat_memory) if now != flat]
        self._own = [key for key in self.elsewhere if not is_shared(self._parameters[key])]
        return moved

    def _span(self) -> tuple[int, int]:
        """The range of values that this step compares: all, or a window that moves with each step."""
        size = len(self._values)
        if size <= _WHOLE:
            return 0, size
        begin = self._step % -(-size // self._window) * self._window
        return begin, min(begin + self._window, size)

    def _sample(self) -> bytes:
        """The values of the span and, unless that is the whole model, some of each parameter."""
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
    """Whether other processes can write the parameter."""
    return parameter.device.type == "cpu" and parameter.is_shared()
