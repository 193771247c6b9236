"""Registry of the PyTorch parameters that an optimizer or learner of this process serves."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from .errors import InvalidArgument

_trainers: Any = WeakIdKeyDictionary()  # by parameter: the process that serves it, and a weak reference to its optimizer or learner


def trainer_of(parameter: torch.nn.Parameter) -> Any:
    """The optimizer or learner of this process that serves the parameter; None if there is none."""
    process, reference = _trainers.get(parameter, (None, None))
    return reference() if process == os.getpid() else None  # after a fork the parent's trainer is not the child's


def check_free(parameters: Mapping[str, torch.nn.Parameter], others: Mapping[str, torch.Tensor] | None = None) -> None:
    """Rejects parameters that another optimizer or learner serves, since the two would undo each other's pulls and
    pushes, and parameters that share memory with each other or with `others`: the frozen parameters and buffers of a
    model whose served parameters move to new memory."""
    for key, served in parameters.items():
        if (trainer := trainer_of(served)) is not None:
            raise InvalidArgument(f"parameter '{key}' is served by a psd.torch.{type(trainer).__name__} already: close() that first")
    ends: list[tuple[int, int, str]] = []
    tensors: dict[str, torch.Tensor] = {**(others or {}), **parameters}
    for key, tensor in tensors.items():
        if tensor.layout == torch.strided and tensor.numel() > 0 and tensor.device.type != "meta":
            begin = tensor.data_ptr()
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
            ends.append((begin, begin + (last + 1) * tensor.element_size(), key))
    ends.sort()
    for (_, end, key), (begin, _, other) in zip(ends, ends[1:]):
        if begin < end and (key in parameters or other in parameters):
            raise InvalidArgument(f"parameters '{key}' and '{other}' share memory, and the daemon would have two values for it: tie them with "
                                  "one torch.nn.Parameter, as in decoder.weight = encoder.weight")


def claim(trainer: object, parameters: dict[str, torch.nn.Parameter]) -> None:
    for parameter in parameters.values():
        _trainers[parameter] = os.getpid(), weakref.ref(trainer)


def release(trainer: object, parameters: dict[str, torch.nn.Parameter]) -> None:
    for parameter in parameters.values():
        if trainer_of(parameter) is trainer:
            del _trainers[parameter]
