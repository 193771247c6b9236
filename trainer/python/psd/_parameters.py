"""What the parameters of a PyTorch model must be, and stay, while a daemon has them."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch

from .errors import InvalidArgument


class Serving(Protocol):
    """What trains a model through a daemon."""

    _parameters: dict[str, torch.nn.Parameter]
    """Those that the daemon's model has."""
    _unserved: dict[str, torch.nn.Parameter]


def check_dtypes(parameters: dict[str, torch.nn.Parameter]) -> None:
    for key, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            raise InvalidArgument(f"parameter '{key}' is {parameter.dtype}; the daemon's are torch.float32 (compute in fewer "
                                  "bits with torch.autocast)")


def check_frozen(serving: Serving) -> None:
    """A parameter that was frozen since would be pushed as one that does not move, one that requires a gradient since would get
    nothing of what others came to."""
    made = f"before the psd.torch.{type(serving).__name__} is made, at a daemon that has no model yet, or set requires_grad back"
    for key, parameter in serving._parameters.items():
        if not parameter.requires_grad:
            raise InvalidArgument(f"parameter '{key}' requires no gradient any more, and is in the daemon's model: freeze it {made}")
    for key, parameter in serving._unserved.items():
        if parameter.requires_grad:
            raise InvalidArgument(f"parameter '{key}' requires a gradient now, and is not in the daemon's model: unfreeze it {made}")


class LoadRefused:
    """A hook of a module's load_state_dict(), whose values the daemon knows nothing of. A copy of the module is free. `then`: what
    would become of them."""

    def __init__(self, serving: Serving | None = None, then: str = ""):
        self._serving = weakref.ref(serving) if serving is not None else None
        self._then = then

    def __reduce__(self) -> Any:
        return LoadRefused, ()

    def __call__(self, module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
        serving = self._serving() if self._serving is not None else None
        served = {id(parameter) for parameter in serving._parameters.values()} if serving is not None else ()
        for key, parameter in module.named_parameters(remove_duplicate=False):
            if id(parameter) in served and prefix + key in state_dict:
                raise InvalidArgument(f"load_state_dict() of '{prefix}{key}': {self._then}; load before the "
                                      f"psd.torch.{type(serving).__name__} is made, at a daemon that has no model yet, or close() it first")
