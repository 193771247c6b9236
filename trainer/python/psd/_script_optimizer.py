"""A torch.optim optimizer of a program, as the daemon runs it: its type, and its numbers as they change."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from . import _psd
from ._embedding import TableRows
from .errors import InvalidArgument

# The flags of each optimizer that the daemon has; its numbers come in the daemon's order.
_FLAGS: dict[type, tuple[str, tuple[str, ...]]] = {
    torch.optim.SGD: ("sgd", ("nesterov",)),
    torch.optim.Adam: ("adam", ("amsgrad",)),
    torch.optim.AdamW: ("adamw", ("amsgrad",)),
    torch.optim.Adagrad: ("adagrad", ()),
    torch.optim.RMSprop: ("rmsprop", ("centered",)),
    torch.optim.Adadelta: ("adadelta", ()),
}
_NUMBERS = {
    "sgd": ("lr", "momentum", "dampening", "weight_decay"),
    "adam": ("lr", "betas", "eps", "weight_decay"),
    "adamw": ("lr", "betas", "eps", "weight_decay"),
    "adagrad": ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"),
    "rmsprop": ("lr", "alpha", "eps", "weight_decay", "momentum"),
    "adadelta": ("lr", "rho", "eps", "weight_decay"),
}
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "OptimizedModule", "FullyShardedDataParallel")
_FIXED = ("maximize", "differentiable", "decoupled_weight_decay")  # besides the flags
_REFUSED = {"maximize": "negate the loss instead", "differentiable": "the daemon makes the step"}


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """The daemon's name of the optimizer."""
    found = _FLAGS.get(type(optimizer))
    if found is None:
        known = ", ".join(kind.__name__ for kind in _FLAGS)
        raise InvalidArgument(f"the daemon has no {type(optimizer).__name__}, only torch.optim's {known}: choose one of them, or use "
                              "psd.torch.DiLoCo with policy diloco and period 1, which keeps any optimizer")
    groups = optimizer.param_groups
    for key, why in _REFUSED.items():
        if any(group.get(key) for group in groups):
            raise InvalidArgument(f"{type(optimizer).__name__}({key}=True) is not for psd.torch.Optimizer: {why}")
    if found[0] == "adam" and all(group.get("decoupled_weight_decay") for group in groups):
        return "adamw"
    for key in ("decoupled_weight_decay", "initial_accumulator_value"):
        if any(group.get(key) != groups[0].get(key) for group in groups):
            raise _differs(key)
    return found[0]


class ScriptOptimizer:
    """The type and numbers of a program's optimizer. Reads its `param_groups`, which the program and its schedulers
    write. Used by the thread that makes the steps."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.kind = kind_of(optimizer)
        self._optimizer = optimizer
        self._groups: Sequence[Mapping[str, Any]] = tuple(optimizer.param_groups)
        self._keys = _NUMBERS[self.kind]
        self._flag_keys = _FLAGS[type(optimizer)][1]
        self._flags = self._read_flags()
        self._fixed = {key: bool(self._groups[0].get(key)) for key in _FIXED}
        if any(float(state.get("step", 1)) > 0 for state in optimizer.state.values() if state):
            raise InvalidArgument(f"the {type(optimizer).__name__} has made steps or loaded a state already, which the daemon's would not "
                                  "continue: make the psd.torch.Optimizer before its first step, and load the state into that one")
        momenta = [_number(group, "momentum") for group in self._groups] if "momentum" in self._keys else []
        if any(momenta) and not all(momenta) and (self._flags.get("centered") or self._flags.get("nesterov")):
            raise InvalidArgument("momentum is 0 in some of the parameter groups only, which the daemon does not combine with "
                                  f"{next(key for key, value in self._flags.items() if value)}=True")
        self._sent: tuple[Any, ...] | None = None
        self._hyperparameters: _psd.Hyperparameters | None = None

    def has(self, groups: Sequence[Mapping[str, Any]]) -> bool:
        """Whether these are still the optimizer's parameter groups."""
        return [*map(id, self._optimizer.param_groups)] == [*map(id, groups)]

    def check(self, groups: Iterable[Mapping[str, Any]]) -> None:
        """Rejects parameter groups, as a state_dict() has them, whose flags are not the optimizer's."""
        for group in groups:
            for key, value in {**self._flags, **self._fixed}.items():
                if key in group and bool(group[key]) != value:
                    raise InvalidArgument(f"{key} has changed to {bool(group[key])}; it is fixed when the psd.torch.Optimizer is made")

    def as_json(self) -> str:
        """As the configuration's key `optimizer`, with the numbers of the first group."""
        group = self._groups[0]
        values: dict[str, Any] = {key: list(_betas(group)) if key == "betas" else _number(group, key) for key in self._keys}
        if "momentum" in values:  # with one above 0 the daemon has the state for it
            values["momentum"] = max(_number(group, "momentum") for group in self._groups)
        return json.dumps({"type": self.kind, **values, **self._flags})

    def numbers(self) -> list[list[float]]:
        """The hyperparameters of each parameter group, in the daemon's order."""
        self.check(self._groups)
        return [[value for key in self._keys for value in (_betas(group) if key == "betas" else (_number(group, key),))]
                for group in self._groups]

    def hyperparameters(self, runs: list[tuple[int, int]], tables: list[int]) -> _psd.Hyperparameters:
        """As they go with a push. `runs`: for each tensor its end and its group; `tables`: the group of each table. For
        a tensor without a gradient, −1 less its group."""
        now = (self.numbers(), runs, tables)
        if now != self._sent or self._hyperparameters is None:
            self._sent, self._hyperparameters = now, _psd.Hyperparameters(*now)
        return self._hyperparameters

    def _read_flags(self) -> dict[str, bool]:
        flags = {key: bool(self._groups[0].get(key)) for key in self._flag_keys}
        for group in self._groups:
            for key, value in flags.items():
                if bool(group.get(key)) != value:
                    raise _differs(key)
        return flags


def _differs(key: str) -> InvalidArgument:
    return InvalidArgument(f"{key} differs between the parameter groups; the daemon has one optimizer")


def _number(group: Mapping[str, Any], key: str) -> float:
    try:
        return float(group[key])
    except (KeyError, TypeError, ValueError, RuntimeError):
        raise InvalidArgument(f"param_groups: {key} is {group.get(key)!r}; expected a number") from None


def _betas(group: Mapping[str, Any]) -> tuple[float, float]:
    try:
        first, second = group["betas"]
        return float(first), float(second)
    except (KeyError, TypeError, ValueError, RuntimeError):
        raise InvalidArgument(f"param_groups: betas are {group.get('betas')!r}; expected two numbers") from None


def module_of(optimizer: torch.optim.Optimizer) -> torch.nn.Module:
    """The module whose parameters the optimizer has: of those that contain all of them, under the names in
    `param_names` if it has these, the one with the fewest parameters; of several with the same parameters, the outermost
    that is no wrapper of PyTorch."""
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    named = {name: id(parameter) for group in optimizer.param_groups
             for name, parameter in zip(group.get("param_names", ()), group["params"])}
    found: list[tuple[int, bool, int, torch.nn.Module]] = []
    for each in gc.get_objects():
        if not issubclass(type(each), torch.nn.Module) or "_parameters" not in each.__dict__:
            continue
        names = {name: id(parameter) for name, parameter in each.named_parameters()}
        if wanted <= set(names.values()) and all(names.get(name) == of for name, of in named.items()):
            found.append((len(names), type(each).__name__ in _WRAPPERS, -sum(1 for _ in each.modules()), each))
    if not found:
        raise InvalidArgument("no module contains all parameters of the optimizer by these names: pass model=, the module whose parameters "
                              "they are, such as torch.nn.ModuleList([encoder, decoder]) for those of two modules")
    return min(found, key=lambda entry: entry[:3])[3]


def parameters_in(optimizer: torch.optim.Optimizer, module: torch.nn.Module,
                  parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.nn.Parameter]:
    """Those of `parameters`, which are the module's that require a gradient, that the optimizer has."""
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    unknown = wanted - {id(parameter) for parameter in module.parameters()}
    if unknown:
        raise InvalidArgument(f"{len(unknown)} of the optimizer's parameters are not in the module {type(module).__name__}: pass model=, the "
                              "module that has all of them")
    return {key: parameter for key, parameter in parameters.items() if id(parameter) in wanted}


def check_tables(optimizer: torch.optim.Optimizer, tables: Iterable[TableRows]) -> None:
    """Rejects tables of the module that get gradients and that the optimizer does not have."""
    ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for table in tables:
        if table.parameter.requires_grad and id(table.parameter) not in ids:
            raise InvalidArgument(f"table '{table.name}' is not in the optimizer: give it all of model.parameters(), or freeze the "
                                  "psd.torch.Embedding with requires_grad_(False)")
