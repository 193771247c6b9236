"""psd.torch.Embedding, and the table rows that a step uses."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch

from . import _arguments, _psd
from ._row_reader import NOTHING, RowReader, RowSource
from .client import Client, Table
from .errors import InvalidArgument

_Function = TypeVar("_Function", bound=Callable[..., Any])


def eager(function: _Function) -> _Function:
    """Excludes a function from torch.compile."""
    return cast(_Function, torch.compiler.disable(function))


class Embedding(torch.nn.Module):
    """Like nn.Embedding, but the table is at the daemon, and ids are any 64-bit integers. Each forward pass pulls the
    rows it uses; step() of the model's psd.torch.Optimizer pushes their gradients. Usable while that optimizer exists,
    and after its close(), when a forward pass reads the current rows over a connection of its own and gradients of rows
    are discarded. Modules with the same name share a table.

    The parameter `rows` holds the rows of a step and their gradients, from the first backward pass until step() or
    zero_grad(); otherwise it is empty. So clipping, a GradScaler, or a loop over model.parameters() treats rows like
    any other parameter. A state_dict() does not include rows."""

    def __init__(self, name: str, dim: int, *, padding_idx: int | None = None, initial: str = "uniform", scale: float = 0.01, seed: int = 1):
        """`padding_idx`: an id whose row is zeros here, whatever the table has, and gets no gradient; any integer of 64
        bits, also a negative one. `initial`, `scale`, `seed`: the initial values of rows, see psd.Table."""
        super().__init__()
        self.padding_idx = None if padding_idx is None else _arguments.integer("padding_idx", padding_idx, -1 << 63, (1 << 63) - 1)
        self.table = Table(name, _arguments.count("dim", dim), initial, scale, seed)
        self.rows = torch.nn.Parameter(torch.empty(0, dim))
        self._source: RowSource | None = None

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows for an int64 tensor of ids of any shape, as [*ids.shape, dim]. A negative id stands for the unsigned
        number with the same bits."""
        return torch.nn.functional.embedding(*self._look_up(ids))

    def _look_up(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        source = self._source.rows() if self._source is not None else None
        if source is None:
            raise InvalidArgument(f"embedding '{self.table.name}' has no daemon: make a psd.torch.Optimizer of the model first")
        return source.look_up(ids, self.rows, self.padding_idx)

    def extra_repr(self) -> str:
        return f"{self.table.name!r}, dim={self.table.dim}" + ("" if self.padding_idx is None else f", padding_idx={self.padding_idx}")

    def __getstate__(self) -> dict[str, Any]:
        """The state without the connection and without the rows of the current step."""
        rows = torch.nn.Parameter(torch.empty(0, self.table.dim), self.rows.requires_grad)
        return {**self.__dict__, "_source": None, "_parameters": {**self._parameters, "rows": rows}}

    def __deepcopy__(self, memo: dict[int, Any]) -> Embedding:
        """A copy reads the same table; its gradients are discarded."""
        copied = self.__class__.__new__(self.__class__)
        memo[id(self)] = copied
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))  # type: ignore[no-untyped-call]
        copied._source = self._source
        return copied

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.pop(prefix + "rows", None)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
                              unexpected_keys: list[str], error_msgs: list[str]) -> None:
        missing: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected_keys, error_msgs)
        missing_keys += [key for key in missing if key != prefix + "rows"]


Embedding.__module__ = "psd.torch"  # its public name, for imports and pickles


class Rows(NamedTuple):
    """Rows with their gradients, for a push."""
    ids: np.ndarray
    gradients: torch.Tensor
    versions: list[int]


@dataclasses.dataclass(eq=False)
class _ReadRows:
    """The rows that a forward pass has read, each id once."""
    ids: np.ndarray
    values: torch.Tensor
    versions: list[int]
    step: int

    @functools.cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self.ids)

    def places_of(self, ids: np.ndarray) -> np.ndarray:
        """The index of each id; −1: not found."""
        if not len(self.ids):
            return np.full(len(ids), -1)
        order = self._order
        places = np.minimum(np.searchsorted(self.ids, ids, sorter=order), len(self.ids) - 1)
        found = order[places]
        return np.where(self.ids[found] == ids, found, -1)


class TableRows:
    """The rows of one table that a step uses. All passes of a step read the same version of a row, including passes
    that activation checkpointing recomputes; a pass without a backward pass leaves no state. Used by the thread that
    makes the steps, and by autograd's thread while the former waits for a backward pass."""

    def __init__(self, table: Table, modules: list[Embedding]):
        self.table, self.name, self.dim = table, table.name, table.dim
        self._modules = modules
        self._before = [(module, module.rows, module._source) for module in modules]
        self.parameter = modules[0].rows
        self._client: Client | None = None
        self._reader: RowReader | None = None  # after detach()
        self._source = RowSource(self)
        self._passes: list[weakref.ref[_ReadRows]] = []  # of this step; kept alive by their autograd graphs
        self._summed: _ReadRows | None = None  # the rows of the parameter, while it has gradients
        self._step = 0
        self._gradient_version = 0  # the version of these gradients after the last backward pass
        self._version = self.parameter._version
        self._handle: torch.utils.hooks.RemovableHandle | None = None

    def attach(self, client: Client) -> None:
        self._client = client
        for _, _, source in self._before:  # of an optimizer that is closed
            if source is not None and (rows := source.rows()) is not None and rows._reader is not None:
                rows._reader.close()
        needs_gradient = self.parameter.requires_grad
        self.parameter.requires_grad_()
        handle = self.parameter.register_hook(functools.partial(_reject_loss, self.name))  # no reference to self or the client
        weakref.finalize(self, handle.remove).atexit = False
        self._handle = handle
        self.parameter.requires_grad_(needs_gradient)
        for module in self._modules:
            module.rows = self.parameter
            module._source = self._source
        self.end_step()

    def detach(self, reader: RowReader) -> None:
        """Detaches from the daemon: `reader` reads rows from now on, and their gradients are discarded."""
        if self._client is not None:
            self.end_step()
            self._reader = reader
            self._source.keep()
        self._client = None
        self._modules, self._before = [], []
        if self._handle is not None:
            self._handle.remove()

    def restore(self) -> None:
        """Restores the modules as they were before attach(); before detach()."""
        for module, rows, source in self._before:
            module.rows, module._source = rows, source

    def end_step(self) -> None:
        """Ends the step: the next read starts a new one."""
        self._step += 1
        self._passes.clear()
        self.clear()

    @torch.no_grad()
    def clear(self) -> None:
        """Discards the gradients."""
        self._summed = None
        self.parameter.grad = None
        self.parameter.data = torch.empty(0, self.dim, device=self.parameter.device)

    @eager
    def look_up(self, ids: torch.Tensor, parameter: torch.nn.Parameter, padding: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows, each once, and the place of each of `ids` among them, for a module with this parameter: the table's own,
        or that of a copy, whose gradients are discarded. `padding`: an id whose row is zeros, the last one; None: there
        is none."""
        _arguments.instance(f"ids of table '{self.name}'", ids, torch.Tensor, "a tensor of integers")
        if ids.dtype.is_floating_point or ids.dtype.is_complex:
            raise TypeError(f"ids of table '{self.name}' are integers, not {ids.dtype}")
        given = ids.detach().to("cpu", torch.int64)
        used = None if padding is None else given != padding
        seen, places = self._rows_of((given if used is None else given[used]).reshape(-1).contiguous(), ids.device)
        leaf = seen.values
        if torch.is_grad_enabled() and parameter.requires_grad:
            leaf = leaf.detach().requires_grad_()
            if parameter is self.parameter and self._client is not None:
                self._check_recomputation()
                self._passes.append(weakref.ref(seen))
                leaf.register_post_accumulate_grad_hook(functools.partial(self._accumulate, seen))
        if used is not None:
            places = torch.full_like(given, len(leaf)).masked_scatter_(used, places)
            leaf = torch.cat([leaf, leaf.new_zeros(1, self.dim)])
        return places.view(ids.shape).to(ids.device), leaf

    def _rows_of(self, ids: torch.Tensor, device: torch.device) -> tuple[_ReadRows, torch.Tensor]:
        """Reads rows; returns them, and the place of each of `ids` among them."""
        if self._client is not None:
            rows = self._client.rows()
            rows.make([(self.name, ids)])
            seen = self._read(rows, device)
        else:
            assert self._reader is not None
            rows = self._reader.read(self.name, ids)
            seen = _ReadRows(rows.ids(self.name), torch.from_numpy(rows.values(self.name)).to(device), [], self._step)
        return seen, torch.from_numpy(rows.places(0).copy()).to(torch.int64)

    def take(self) -> Rows | None:
        """The rows of the step with their gradients; None if there are none."""
        if self.parameter._version != self._version:
            self._version = self.parameter._version
            raise InvalidArgument(f"rows of table '{self.name}' were changed in place (weight clipping, an init function, another "
                                  "optimizer), which the daemon, which holds them, cannot see; only their gradients may be changed")
        gradients = self._gradients()
        if gradients is None:
            return None
        assert self._summed is not None
        return Rows(self._summed.ids, gradients.detach().cpu(), self._summed.versions)

    @torch.no_grad()
    def _read(self, rows: _psd.Rows, device: torch.device) -> _ReadRows:
        """Reads rows: from this step's earlier passes if they have read them, otherwise from the daemon."""
        assert self._client is not None
        ids = rows.ids(self.name)
        known, left, versions = [], np.arange(len(ids)), [0]
        for seen in self._held():
            found = seen.places_of(ids[left])
            if (here := found >= 0).any():
                known.append((left[here], seen, found[here]))
                versions, left = _oldest(versions, seen.versions), left[~here]
            if not len(left):
                break
        if len(left) or not len(ids):
            versions = _oldest(versions, self._client.begin_pull(NOTHING, rows).wait().versions)
        values = torch.from_numpy(rows.values(self.name)).to(device)
        for places, seen, found in known:
            values[torch.from_numpy(places).to(device)] = seen.values[torch.from_numpy(found).to(seen.values.device)].to(device)
        return _ReadRows(ids, values, versions, self._step)

    def _held(self) -> list[_ReadRows]:
        """The rows that this step has read and that a backward pass has used or still can use."""
        held = [seen for each in self._passes if (seen := each()) is not None]
        self._passes = [weakref.ref(seen) for seen in held]
        summed = self._summed
        return held if summed is None or summed.step != self._step or self.parameter.grad is None else [summed, *held]

    def _gradients(self) -> torch.Tensor | None:
        """The parameter's gradients; None if they were cleared, as by a loop over all parameters."""
        gradients = self.parameter.grad
        if self._summed is None or gradients is None or len(gradients) != len(self._summed.ids):
            return None
        if gradients._version != self._gradient_version and not gradients.any():
            return None
        return gradients

    @eager
    def _accumulate(self, seen: _ReadRows, leaf: torch.Tensor) -> None:
        """Called after a backward pass: adds the gradients of the rows that a forward pass has read."""
        gradients, leaf.grad = leaf.grad, None
        if self._client is None or gradients is None or not self.parameter.requires_grad:  # checked only here, like in autograd
            return
        parameter: Any = self.parameter
        if len(parameter._backward_hooks or ()) > 1 or parameter._post_accumulate_grad_hooks:
            raise InvalidArgument(f"a hook is registered on the parameter of table '{self.name}', whose rows differ from step to step: "
                                  "register it on the output of the embedding")
        total = self._gradients()
        if total is None:
            self._hold(seen, gradients)
            return
        assert self._summed is not None
        with torch.set_grad_enabled(gradients.requires_grad or total.requires_grad):
            gradients = gradients.to(total.device)
            places = self._summed.places_of(seen.ids)
            if len(new := np.flatnonzero(places < 0)):
                places[new] = np.arange(len(new)) + len(self._summed.ids)
                more = seen.values[torch.from_numpy(new).to(seen.values.device)].to(self._summed.values.device)
                total = torch.cat([total, total.new_zeros(len(new), self.dim)])
                ids, values = np.concatenate([self._summed.ids, seen.ids[new]]), torch.cat([self._summed.values, more])
            else:
                ids, values = self._summed.ids, self._summed.values
            union = _ReadRows(ids, values, _oldest(self._summed.versions, seen.versions), min(self._summed.step, seen.step))
            self._hold(union, total.index_add(0, torch.from_numpy(places).to(total.device), gradients))

    def _hold(self, seen: _ReadRows, gradients: torch.Tensor) -> None:
        self._summed = seen
        self.parameter.grad = None
        self.parameter.data = seen.values.to(gradients.device)
        self.parameter.grad = gradients
        self._gradient_version = gradients._version

    def _check_recomputation(self) -> None:
        """Rejects a forward pass inside backward() of an autograd function: it recomputes a pass without a graph, whose
        rows were not kept."""
        if isinstance(torch._C._current_autograd_node(), torch.autograd.function.BackwardCFunction):
            raise InvalidArgument(f"embedding '{self.name}' is read again in a backward pass, by activation checkpointing with "
                                  "use_reentrant=True, which does not keep the rows that the forward pass read: use_reentrant=False does")


class IgnoredByDdp:
    """Until remove(), makes DistributedDataParallel ignore the rows of a model's tables, whose number differs between
    processes."""

    _NAME = "_ddp_params_and_buffers_to_ignore"

    def __init__(self, model: torch.nn.Module):
        self._model = model
        self._names = [f"{name}.rows" if name else "rows" for name, module in model.named_modules() if isinstance(module, Embedding)]
        setattr(model, self._NAME, [*getattr(model, self._NAME, ()), *self._names])

    def remove(self) -> None:
        left = [name for name in getattr(self._model, self._NAME, ()) if name not in self._names]
        if left:
            setattr(self._model, self._NAME, left)
        else:
            self._model.__dict__.pop(self._NAME, None)


def _reject_loss(name: str, _: torch.Tensor) -> None:
    raise InvalidArgument(f"the parameter of table '{name}' is in a loss (a penalty on model.parameters(), perhaps), but the table is not in "
                          "this process: apply the penalty to the output of the embedding")


def tables_of(model: torch.nn.Module) -> list[TableRows]:
    """The tables of the psd.torch.Embedding modules of a model."""
    modules: dict[str, list[Embedding]] = collections.defaultdict(list)
    for module in model.modules():
        if isinstance(module, Embedding):
            modules[module.table.name].append(module)
    for name, same in modules.items():
        if any(module.table != same[0].table for module in same):
            raise InvalidArgument(f"two embeddings of table '{name}' differ in dim or in the initial values of rows")
    return [TableRows(same[0].table, same) for same in modules.values()]


def _oldest(one: list[int], other: list[int]) -> list[int]:
    """The older version of each shard; 0 means none."""
    shards = max(len(one), len(other))
    pairs = zip(one + [0] * (shards - len(one)), other + [0] * (shards - len(other)))
    return [min(filter(None, pair), default=0) for pair in pairs]


torch.serialization.add_safe_globals([Embedding, Table])
