"""The state of the daemon's optimizer in the layout of torch.optim, as a program saves and loads it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from . import _psd
from ._loads import Loads
from .client import Client, Model, State
from .errors import DeadlineExceeded, InvalidArgument

_log = logging.getLogger("psd")
_WAIT_SECONDS = 300.0  # for rank 0 to restore
_PAUSE_SECONDS = 0.05


class ServesState(Protocol):
    """An optimizer whose state a daemon has."""

    client: Client
    model: Model
    _info: _psd.JoinInfo
    _groups: tuple[dict[str, Any], ...]
    _parameters: dict[str, torch.nn.Parameter]
    _slices: dict[str, tuple[int, int]]
    """By parameter, its begin and size in a flat array, padding included."""
    _value_of: dict[str, torch.Tensor]
    """The values of the last pull, by parameter."""
    _loads: Loads

    def _note(self) -> None: ...


def is_full(state_dict: Mapping[str, Any]) -> bool:
    """Whether the dictionary has the optimizer's state, if only that no step was made."""
    return bool(state_dict.get("state")) or "steps" in state_dict.get("psd", {})


def groups_of(optimizer: str) -> list[dict[str, Any]]:
    """The one parameter group of a daemon's optimizer, given as JSON, without parameters."""
    options = json.loads(optimizer)
    return [{key: tuple(value) if isinstance(value, list) else value for key, value in options.items() if key not in ("type", "schedule")}]


@torch.no_grad()
def fetch(optimizer: ServesState) -> State:
    """The daemon's state. Gives the parameters the values of the same moment."""
    fetched, client = optimizer.client.fetch_state(), optimizer.client
    shards = len(fetched.versions)
    if client.versions[:shards] != fetched.versions and not optimizer._loads.pending:
        for key, view in _views(optimizer, fetched.values).items():
            optimizer._value_of[key].copy_(view)
        client.versions[:shards] = fetched.versions
        optimizer._note()
    return fetched


def state_of(optimizer: ServesState, fetched: State) -> dict[int, dict[str, torch.Tensor]]:
    """The fetched state by the number of the parameter in `param_groups`. A parameter whose shards differ in their steps
    has the highest."""
    views = {name: _views(optimizer, array) for name, array in fetched.state.items()}
    kept = json.loads(optimizer._info.optimizer)["type"] == "adagrad"  # torch.optim.Adagrad has a state before its first step
    result: dict[int, dict[str, torch.Tensor]] = {}
    for number, key in _numbered(optimizer).items():
        begin, size = optimizer._slices[key]
        steps = max(fetched.steps[shard] for shard in _shards_of(optimizer, begin, size))
        if steps > 0 or kept:
            state = {name: of[key] for name, of in views.items()}
            result[number] = {"step": torch.tensor(float(steps)), **state}
    return result


def restore(optimizer: ServesState, state_dict: Mapping[str, Any]) -> None:
    """Brings the module's current values and the state to the daemon, whose run has not begun. Ranks above 0 wait until
    rank 0 has done it."""
    numbered, given = _numbered(optimizer), state_dict.get("state", {})
    states = {key: given.get(number, {}) for number, key in numbered.items()}
    for key, state in states.items():
        _check(key, state, optimizer.model.shapes[key])
    counts = _steps(optimizer, {key: _step_of(key, state) for key, state in states.items()}, "psd" in state_dict)
    if optimizer._info.rank != 0:
        _await_restored(optimizer, counts)
        return
    names = {name for state in states.values() for name, value in state.items() if name != "step" and value is not None}
    _check_complete(states, names, any(state_dict.get("psd", {}).get("steps", ())))
    arrays = {name: optimizer.model.zeros(float32=True) for name in names}
    if not names or any(state.get(name) is None for state in states.values() for name in names):
        arrays.update(optimizer.client.fetch_state().state)  # which a daemon without updates has in its initial state
    for name, array in arrays.items():
        for key, view in _views(optimizer, array).items():
            if (value := states[key].get(name)) is not None:
                view.copy_(value.detach())
    values = optimizer.model.zeros(float32=True)
    masters = state_dict.get("psd", {}).get("values", {})
    for key, view in _views(optimizer, values).items():
        view.copy_(_master_of(optimizer._parameters[key].detach(), masters.get(key)))
    optimizer.client.restore_state(values, arrays, counts)


def masters_of(optimizer: ServesState, fetched: State) -> dict[str, torch.Tensor]:
    """The daemon's float32 values of the parameters that have fewer bits, by name."""
    views = _views(optimizer, fetched.values)
    return {key: views[key] for key, parameter in optimizer._parameters.items() if parameter.dtype != torch.float32}


def _master_of(values: torch.Tensor, master: Any) -> torch.Tensor:
    """The float32 values of a parameter: `master`, if the parameter has its values rounded, or else the parameter's."""
    if isinstance(master, torch.Tensor) and master.shape == values.shape and torch.equal(master.to(values), values):
        return master
    return values


def _views(optimizer: ServesState, flat: np.ndarray) -> dict[str, torch.Tensor]:
    return {key: torch.from_numpy(np.asarray(view)) for key, view in optimizer.model.views(flat).items()}


def _numbered(optimizer: ServesState) -> dict[int, str]:
    """The served parameters' names by their numbers in `param_groups`."""
    names = {id(parameter): key for key, parameter in optimizer._parameters.items()}
    parameters = [parameter for group in optimizer._groups for parameter in group["params"]]
    return {number: names[id(parameter)] for number, parameter in enumerate(parameters) if id(parameter) in names}


def _shards_of(optimizer: ServesState, begin: int, size: int) -> list[int]:
    """The shards that have elements of this range."""
    return [shard for shard, (first, count) in enumerate(optimizer._info.shard_ranges) if first < begin + size and begin < first + count]


def _check(key: str, state: Mapping[str, Any], shape: tuple[int, ...]) -> None:
    for name, value in state.items():
        if name == "step" or value is None:
            continue
        if not isinstance(value, torch.Tensor) or tuple(value.shape) != tuple(shape):
            what = f"of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
            raise InvalidArgument(f"the state '{name}' of parameter '{key}' is {what}; expected a tensor of shape {tuple(shape)}")


def _check_complete(states: Mapping[str, Mapping[str, Any]], names: set[str], all_have: bool) -> None:
    """Rejects a parameter with a part of the states. `all_have`: psd saved them after a step, which gives each parameter
    all; in one that torch.optim saved, a parameter that had no gradient has none."""
    wanted = names | {"step"} if any("step" in state for state in states.values()) else names
    for key, state in states.items():
        if not state and all_have:
            raise InvalidArgument(f"there is no state of parameter '{key}', which state_dict(full=True) has")
        if state and (missing := sorted(wanted - {name for name, value in state.items() if value is not None})):
            raise InvalidArgument(f"the state of parameter '{key}' has no '{missing[0]}'")


def _step_of(key: str, state: Mapping[str, Any]) -> int:
    """The steps of a parameter. torch.optim.SGD keeps none: with a momentum, one or more."""
    if "step" not in state:
        return int(any(value is not None for value in state.values()))
    step = float(state["step"])
    if step < 0 or step != int(step):
        raise InvalidArgument(f"the state 'step' of parameter '{key}' is {step}; expected a number of steps")
    return int(step)


def _steps(optimizer: ServesState, steps: Mapping[str, int], is_ours: bool) -> list[int]:
    """The steps of each shard, which the daemon counts for all of its parameters together. `is_ours`: psd saved them, and
    where they differ some updates were under way."""
    counts = []
    for begin, size in optimizer._info.shard_ranges:
        here = [key for key in steps if optimizer._slices[key][0] < begin + size and begin < sum(optimizer._slices[key])]
        most = max(here, key=lambda key: steps[key])
        least = min(here, key=lambda key: steps[key])
        if steps[most] != steps[least] and not is_ours:
            raise InvalidArgument(f"parameter '{most}' has made {steps[most]} steps and '{least}' {steps[least]}, having missed gradients, and "
                                  "the daemon counts the steps of both together: it cannot continue from this state")
        counts.append(steps[most])
    return counts


def _await_restored(optimizer: ServesState, counts: Sequence[int]) -> None:
    _log.info("waiting for rank 0, which restores the model's values and the optimizer's state")
    into, deadline = optimizer.model.zeros(), time.monotonic() + _WAIT_SECONDS
    while True:
        optimizer.client.pull(into)
        if all(version >= max(count, 1) for version, count in zip(optimizer.client.versions, counts)):
            return
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"rank 0 has not loaded the optimizer's state for {_WAIT_SECONDS:.0f} s: call load_state_dict() there too")
        time.sleep(_PAUSE_SECONDS)
