"""load_state_dict() of a module whose parameters are served: the values stay until the next step, for evaluation."""

from __future__ import annotations

import collections
import logging
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from ._parameters import TrainsServed
from .errors import InvalidArgument

_log = logging.getLogger("psd")


class Loads:
    """What load_state_dict() has written into the served parameters of a module since the last undo(): the values
    before it are kept in host memory. Used by the thread that makes the steps."""

    def __init__(self, trainer: TrainsServed):
        self._kind = f"psd.torch.{type(trainer).__name__}"
        self._parameters = trainer._parameters
        self._names = {id(parameter): key for key, parameter in self._parameters.items()}
        self._before: dict[str, tuple[torch.Tensor, int]] = {}  # by name: values and version before the first load
        hook = _LoadHook(self)
        self._hooks = [_local_hooks(module).register_load_state_dict_pre_hook(hook) for module in trainer._module.modules()]

    @property
    def pending(self) -> bool:
        """Whether the next undo() has anything to do."""
        return bool(self._before)

    def note(self, parameters: Iterable[tuple[str, torch.nn.Parameter]], assigns: bool) -> None:
        """Called before values are loaded into these parameters."""
        served = [(self._names[id(parameter)], parameter) for _, parameter in parameters if id(parameter) in self._names]
        if served and assigns:
            raise InvalidArgument(f"load_state_dict(assign=True) would replace parameter '{served[0][0]}', which a {self._kind} serves: load "
                                  "with assign=False, or close() it first")
        for key, parameter in served:
            if key not in self._before:
                self._before[key] = parameter.detach().to("cpu", copy=True), parameter._version

    @torch.no_grad()
    def undo(self, versions: list[int]) -> dict[str, torch.Tensor]:
        """Writes the values from before the loads back. `versions`: the version counters of all parameters at the last
        pull or step, in which these writes are entered. Returns the loaded values, by name, of the parameters that the
        loads have changed."""
        loaded = {}
        for index, (key, parameter) in enumerate(self._parameters.items() if self._before else ()):
            if key in self._before:
                before, version = self._before.pop(key)
                if not torch.equal(parameter.detach().cpu(), before):
                    loaded[key] = parameter.detach().clone()
                    parameter.copy_(before)
                if versions[index] == version:  # otherwise something else has written the parameter as well
                    versions[index] = parameter._version
        return loaded

    def accept(self) -> None:
        """The loaded values are the daemon's from now on."""
        self._before.clear()

    def log(self, loaded: Iterable[str], consequence: str) -> None:
        """Logs that an undo() returned these names. `consequence`: what happens now."""
        first, *others = loaded
        _log.warning("load_state_dict() has changed parameter '%s'%s: %s; to train from a checkpoint, load it before the %s is made, at a "
                     "daemon that has no model yet", first, f" and {len(others)} more" if others else "", consequence, self._kind)

    def remove(self) -> None:
        """Removes the hooks. The parameters keep their values."""
        self._before.clear()
        for hook in self._hooks:
            hook.remove()


class _LoadHook:
    """A hook of a module's load_state_dict(), without effect once its Loads is gone."""

    def __init__(self, loads: Loads):
        self._loads = weakref.ref(loads)

    def __call__(self, module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any], *_: object) -> None:
        if (loads := self._loads()) is not None:
            loads.note([(key, parameter) for key, parameter in module.named_parameters(remove_duplicate=False) if prefix + key in state_dict],
                       metadata.get("assign_to_params_buffers", False))


class _LocalHooks(collections.OrderedDict[int, Any]):
    """A module's hooks. Copies and pickles omit psd's hooks: a copy is not served, and torch.load() reads it without
    psd."""

    def __reduce__(self) -> Any:
        others = [(key, hook) for key, hook in self.items() if not isinstance(getattr(hook, "hook", hook), _LoadHook)]
        return collections.OrderedDict, (others,) if others else ()


def _local_hooks(module: torch.nn.Module) -> torch.nn.Module:
    """The module, with hooks of load_state_dict() that copies omit."""
    if not isinstance(module._load_state_dict_pre_hooks, _LocalHooks):
        module._load_state_dict_pre_hooks = _LocalHooks(module._load_state_dict_pre_hooks)
    return module
