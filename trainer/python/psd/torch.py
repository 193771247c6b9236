"""PyTorch: psd.torch.Optimizer replaces a local optimizer."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else

# isort: split

import copy
import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from . import _arguments, _cuda, _dtypes, _full_state, _psd, _served
from ._assigned_sampler import AssignedSampler
from ._diloco import DiLoCo
from ._embedding import Embedding, IgnoredByDdp, Rows, eager, tables_of
from ._embedding_bag import EmbeddingBag
from ._loads import Loads
from ._module_buffers import BufferCalls, ModuleBuffers
from ._numbers import Defaults, Group
from ._parameters import check_dtypes, check_kinds, check_module, check_shapes, layout_of, parameters_of, sparse_in
from ._psd import keep_freed_memory
from ._row_reader import RowReader
from ._script_optimizer import ScriptOptimizer, check_tables, module_of, parameters_in
from ._training import Training
from ._watch import Watch, is_shared
from .client import Client, ClientOptions, Model, log_replaced
from .errors import Error, InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AssignedSampler", "DiLoCo", "Embedding", "EmbeddingBag", "Optimizer", "keep_freed_memory"]

_log = logging.getLogger("psd")
_Flat = np.ndarray | torch.Tensor


@dataclasses.dataclass
class _Exchange:
    """The state that changes from step to step, in one object so that wrappers that copy attributes, such as
    Lightning's, share it."""
    samples: int
    sampler: AssignedSampler | None = None
    last_push: _psd.PushInfo | None = None
    push: _psd.PartialPush | None = None  # with overlap: the push that runs during backward passes
    push_samples: int = 0  # its samples
    push_numbers: list[list[float]] = dataclasses.field(default_factory=list)  # its hyperparameters
    sent: dict[str, int] = dataclasses.field(default_factory=dict)  # by name: the version of each gradient that it has sent
    computed: set[str] = dataclasses.field(default_factory=set)  # names of parameters that have a gradient, by a backward pass
    restored: list[int] | None = None  # the versions of the state that this trainer has restored
    empty: dict[str, tuple[torch.Tensor, int]] = dataclasses.field(default_factory=dict)  # zeros of the others, and their versions


class Optimizer(Training, BufferCalls, torch.optim.Optimizer):
    """Pushes gradients to a daemon and pulls the updated parameters.

    Made of an optimizer of torch.optim, such as `torch.optim.AdamW(model.parameters(), lr=3e-4)`, its type and numbers
    are the daemon's, unless the daemon's configuration has an optimizer. `param_groups` are those of that optimizer: the
    program and its schedulers write them, and each push carries their numbers. Made of a module, the daemon's
    configuration determines the optimizer.

    The optimizer's parameters that require a gradient at construction are the daemon's model, by name, shape and dtype:
    float32, bfloat16 or float16, in which values and gradients travel; the daemon's own are float32. On the CPU, or all
    on one GPU, they become views of one flat array, and so do their gradients, so nothing is copied. Parameters on one
    GPU are transferred through memory of the daemon's GPUs if the daemon shares it; parameters on several devices are
    copied through host memory. Parameters in shared memory, or in format channels_last, keep their memory, and pulls are
    copied to them. The first trainer's values initialize the model;
    later trainers adopt the model's values, which the logger "psd" reports. Buffers, such as BatchNorm's running means,
    stay local to each trainer, unless `buffers` is "rank0".

    Only pulls change parameters: step() rejects values that something else has written since the last pull, and
    restores the daemon's. Values of load_state_dict() stay until the next step(), for evaluation: it restores the
    daemon's, discards the gradients, and logs a warning; before the first step it fails if this trainer brought the model.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | torch.nn.Module | None = None, server: str | None = None, *,
                 model: torch.nn.Module | None = None, rank: int | None = None, world_size: int | None = None,
                 name: str | None = None, samples: int = 1, overlap: bool = False, buffers: str = "local",
                 **options: Unpack[ClientOptions]):
        """`optimizer`: a torch.optim optimizer, or a module. `model`: the module that has the optimizer's parameters,
        which gives them names; None: the smallest module that contains all of them. `server`, `rank`, `world_size`: see
        psd.Client; from torchrun's environment if None. `samples`: examples per gradient, by which rounds weigh it.
        `overlap`: each gradient is sent as soon as the backward pass has computed it, so it must not change afterwards:
        no second backward pass before step(), no clipping. `buffers`: "local", or "rank0": the daemon also serves the
        module's persistent buffers, those of rank 0, which other trainers take when they join. `options`: of psd.Client;
        `device` defaults to that of the parameters, and None makes parameters on a GPU be copied through host memory. If construction fails, the model
        is unchanged, and the trainer has left the daemon."""
        self._script = ScriptOptimizer(optimizer) if isinstance(optimizer, torch.optim.Optimizer) else None
        if model is None:
            model = module_of(optimizer) if isinstance(optimizer, torch.optim.Optimizer) else optimizer
        if not isinstance(model, torch.nn.Module):
            raise InvalidArgument("psd.torch.Optimizer is made of a torch.optim optimizer, or of a module, whose parameters have names, not of "
                                  f"a {type(model).__name__}: pass the optimizer, or the model itself instead of model.parameters()")
        self._exchange = _Exchange(_arguments.count("samples", samples))
        self._module = model
        self._parameters, self._unserved = parameters_of(model)
        self._lookups = tables_of(model)
        if isinstance(optimizer, torch.optim.Optimizer):
            self._parameters = parameters_in(optimizer, model, self._parameters)
            check_tables(optimizer, self._lookups)
            super().__init__(optimizer.param_groups, optimizer.defaults)
            self._groups: tuple[dict[str, Any], ...] = tuple(self.param_groups)
        else:
            served: list[torch.Tensor] = [*self._parameters.values(), *(table.parameter for table in self._lookups)]
            super().__init__([{"params": served or [torch.zeros(1)]}], {})
            self._groups = tuple(Group(group) for group in self.param_groups)
            self.param_groups: list[dict[str, Any]] = list(self._groups)
            self.defaults = Defaults()
        self._buffers = ModuleBuffers(model, buffers)
        self._check(model, overlap)
        self._grouped = [id(parameter) for group in self._groups for parameter in group["params"]]
        self._step_supports_amp_scaling = overlap  # makes a GradScaler visible to step(), which rejects it
        self.model = Model.of(name or type(model).__name__, self._parameters, [table.table for table in self._lookups])
        self._parameters = {key: self._parameters[key] for key in self.model.shapes}
        self._device = options.setdefault("device", _cuda_device_of(self._parameters))
        self._make_arrays()
        self._hooks: list[Any] = []
        self._before: list[tuple[torch.nn.Parameter, torch.Tensor, torch.Tensor | None]] = []  # during construction
        self.client = Client(server, optimizer=self._script.as_json() if self._script else "", **options)
        try:
            self._info = self.client.join(self.model, self._values, rank, world_size)
            self._check_policy(self._info)
            self._adopt_optimizer()
            self.client.pull(self._values)
            self._log_replaced()
            self._attach(model, overlap)
            self._buffers.begin(self.client, self._info)
        except BaseException:
            self._restore()
            self.client._abandon()
            raise
        self._before.clear()
        if sparse := sparse_in(model, self._parameters):
            _log.info("each step pulls all rows of '%s', and pushes those with a gradient; psd.torch.Embedding also pulls only the rows that a "
                      "step uses", "', '".join(sparse))

    def _make_arrays(self) -> None:
        """Makes the flat arrays, with the parameters' values, and finds the parameter group of each place in them."""
        self._values, self._gradients = self._zeros(self._device), self._zeros(self._device)
        self._value_of, self._gradient_of = self._views(self._values), self._views(self._gradients)
        self._gradient_memory = {key: view.data_ptr() for key, view in self._gradient_of.items()}
        ends = [place.start for place in self.model.places.values()][1:] + [self.model.size]
        self._slices = {key: (place.start, end - place.start) for (key, place), end in zip(self.model.places.items(), ends)}
        for key, parameter in self._parameters.items():
            self._value_of[key].copy_(parameter.detach())
        group_of = {id(parameter): index for index, group in enumerate(self._groups) for parameter in group["params"]}
        self._runs = [(end, group_of.get(id(parameter), 0)) for end, parameter in zip(ends, self._parameters.values())]
        self._table_groups = [group_of.get(id(table.parameter), 0) for table in self._lookups]

    def _adopt_optimizer(self) -> None:
        """Keeps the numbers that the daemon's configuration has, if it has any."""
        self._fixed: list[list[float]] | None = None
        if self._script is None or self._info.takes_hyperparameters:
            return
        self._fixed = self._script.numbers()
        if any(numbers != self._fixed[0] for numbers in self._fixed):
            raise InvalidArgument("the parameter groups have different numbers, and the daemon's configuration has one optimizer: remove "
                                  "`optimizer` from it, so that this program's applies")
        _log.info("the daemon's configuration has the optimizer, which this program's equals: %s", self._info.optimizer)

    def _hyperparameters(self, has_gradient: Callable[[str], bool] | None = None) -> _psd.Hyperparameters | None:
        """The numbers of this step, for the push. `has_gradient`: whether a parameter has a gradient; None: all have."""
        if self._script is None:
            return None
        if self._fixed is not None:
            if self._script.numbers() != self._fixed:
                raise InvalidArgument("param_groups has other numbers than the daemon's configuration, by a scheduler perhaps: remove "
                                      "`optimizer` from the configuration, so that this program's applies")
            return None
        runs = self._runs
        if has_gradient is not None:
            runs = [run if has_gradient(key) else (run[0], -1 - run[1]) for key, run in zip(self._parameters, runs)]
        return self._script.hyperparameters(runs, self._table_groups)

    def _has_gradient(self, key: str) -> bool:
        """Whether torch.optim would find a gradient: a backward pass, or the program, has written it. Clipping writes
        all gradients, and leaves those without a value zero."""
        gradient, empty = self._parameters[key].grad, self._exchange.empty.get(key)
        if gradient is None or key in self._exchange.computed:
            return gradient is not None
        return empty is None or gradient is not empty[0] or (gradient._version != empty[1] and bool(gradient.any()))

    def _note_gradients(self, computed: Iterable[str]) -> None:
        """Records which parameters have a gradient."""
        exchange = self._exchange
        kept = {*computed}
        exchange.computed.clear()  # hooks have a reference to it
        exchange.computed.update(kept)
        exchange.empty = {key: (parameter.grad, parameter.grad._version) for key, parameter in self._parameters.items()
                          if key not in kept and parameter.grad is not None}

    @property
    def rank(self) -> int:
        return self._info.rank

    @property
    def samples(self) -> int:
        """Examples of each gradient from now on."""
        return self._exchange.samples

    @samples.setter
    def samples(self, samples: int) -> None:
        self._exchange.samples = _arguments.count("samples", samples)

    @property
    def last_push(self) -> _psd.PushInfo | None:
        """The outcome of the last push: a psd.PushInfo."""
        return self._exchange.last_push

    def close(self) -> None:
        """Leaves and closes the connection. The parameters keep their values, and backward passes send nothing any
        more."""
        self._detach()
        try:
            self._buffers.flush()
        finally:
            super().close()

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        self._detach()
        super().__exit__(kind, *more)

    @eager
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, samples: int | None = None) -> Any:
        """Pushes the gradients, waits for the outcome, and pulls the parameters. A parameter without a gradient is not
        changed; it counts as one with a zero gradient under a policy with rounds, with `overlap`, and if the daemon's
        configuration has the optimizer. `samples`: examples of this step; None: those of the AssignedSampler's batch, or else
        `self.samples`."""
        self._check_exchange()
        if loaded := self._loads.undo(self._watch.versions):
            self._check_values()
            self._discard(loaded)
            if closure is None:
                return None
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_values()
        exchange = self._exchange
        if exchange.push is None:
            rows = [(table.name, taken) for table in self._lookups if (taken := table.take()) is not None]
            hyperparameters = self._hyperparameters(self._has_gradient)  # first: it may refuse, and the batch stays assigned
            count = self._samples_of_step(samples)
            for key in self._parameters:
                self._gather(key)
            basis, batch = self._batch_of(rows)
            exchange.last_push = self.client.push(self._gradients, count, basis=basis, rows=batch, hyperparameters=hyperparameters)
        elif samples is not None and samples != exchange.push_samples:
            raise InvalidArgument(f"a gradient of {exchange.push_samples} samples was sent already, and step() says {samples}: with "
                                  "overlap=True set optimizer.samples before the backward pass")
        else:
            exchange.last_push = self._finish(exchange.push)
        self._pull()
        self._buffers.stepped()
        for table in self._lookups:
            table.end_step()
        return loss

    @eager
    @torch.no_grad()
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets the gradients to zero; they keep their memory. With `set_to_none` all parameters count as without a
        gradient until a backward pass has computed one. Abandons a push that a backward pass has started."""
        check_dtypes(self._parameters, self.model.dtypes)
        self._abandon_push()
        if self._exchange.sampler is not None:
            self._exchange.sampler._before_zero_grad()
        computed = [] if set_to_none else [key for key in self._parameters if self._has_gradient(key)]
        self._gradients[:] = 0
        for key, parameter in self._parameters.items():
            self._attach_gradient(key, parameter)
        torch.autograd.graph.increment_version([parameter.grad for parameter in self._parameters.values() if parameter.grad is not None])
        self._note_gradients(computed)
        for table in self._lookups:
            table.clear()

    def state_dict(self, full: bool = False) -> dict[str, Any]:
        """The numbers of `param_groups`, and in "psd" the step and the versions of the last pull. `state` is empty: the
        daemon has it and saves it as its `durability` says. With `buffers="rank0"` rank 0 sends its buffers. `full`: with the
        state, fetched from the daemon, as torch.optim has it; a torch.optim optimizer of the same type can load it. The
        parameters then have the values of the same moment, so save the module afterwards; call it between step() and the
        next forward pass."""
        self._buffers.flush()
        if self._script is None and not full:
            return {"state": {}, "param_groups": []}
        if full and self._exchange.push is not None:
            raise InvalidArgument("state_dict(full=True) between a backward pass and step(), with overlap=True: call it after step()")
        fetched = _full_state.fetch(self) if full else None
        groups = _full_state.groups_of(self._info.optimizer) if self._script is None else [
            {key: value for key, value in group.items() if key != "params"} for group in self._groups]
        begin = 0
        for saved, group in zip(groups, self._groups):
            saved["params"] = list(range(begin, begin + len(group["params"])))
            begin += len(group["params"])
        place: dict[str, Any] = {"step": self.client.step, "versions": list(self.client.versions)}
        if fetched is not None:
            place.update(steps=fetched.steps, values=_full_state.masters_of(self, fetched))
        return {"state": _full_state.state_of(self, fetched) if fetched is not None else {}, "param_groups": groups, "psd": place}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Sets the numbers of `param_groups` to those of a state_dict(). If it has the full state, from state_dict(full=True)
        or torch.optim, the daemon continues from that state and from the values that the module has now, for which its run
        must not have begun: rank 0 brings them, and the others wait for it. Load the module first. Without a state it logs
        a warning if the daemon's model is of an earlier version than the state_dict(), and fails if that is of no update."""
        groups = _arguments.mapping("the state_dict", state_dict).get("param_groups", [])
        full = _full_state.is_full(state_dict)
        if (full or self._script is not None) and [len(group.get("params", ())) for group in groups] != [
                len(group["params"]) for group in self._groups]:
            raise InvalidArgument("the state_dict has other parameter groups than the optimizer")
        if self._script is not None:
            self._script.check(groups)
        # torch.optim.SGD without a momentum has no state.
        stateless = self._script is not None and "psd" not in state_dict and self._loads.pending and not any(self.client.versions)
        if full or stateless:
            self._restore_state(state_dict)
        if self._script is None:
            return
        saved_version = max(state_dict.get("psd", {}).get("versions", ()), default=0)
        version = max(self.client.versions, default=0)
        if saved_version > version == 0:
            raise InvalidArgument(f"the state_dict is of version {saved_version} of a model that another daemon has: save it with "
                                  "state_dict(full=True) to continue at a daemon whose run has not begun")
        for group, saved in zip(self._groups, copy.deepcopy(groups)):
            group.update({key: value for key, value in saved.items() if key not in ("params", "param_names")})
        if saved_version > version:
            _log.warning("the state_dict is of version %d of the model, and the daemon has version %d: the optimizer's state, such as Adam's "
                         "moments, is the daemon's and not that of the checkpoint", saved_version, version)

    @torch.no_grad()
    def _restore_state(self, state_dict: dict[str, Any]) -> None:
        _full_state.restore(self, state_dict)
        self._loads.accept()
        self.zero_grad()
        self._pull()
        self._exchange.restored = list(self.client.versions)
        self._buffers.restored()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "model"):
            raise InvalidArgument("the daemon's model cannot be extended: make a psd.torch.Optimizer of the whole model")
        super().add_param_group(param_group)

    def __reduce__(self) -> Any:
        raise TypeError("a psd.torch.Optimizer cannot be pickled: it is a connection; make one in each process")

    def _check(self, model: torch.nn.Module, overlap: bool) -> None:
        """Checks before the join."""
        if not self._parameters and not self._lookups:
            raise InvalidArgument("the model has no parameter that requires a gradient")
        if overlap and self._lookups:
            raise InvalidArgument("overlap=True is for models without psd.torch.Embedding: gradients of rows are pushed by step()")
        check_kinds(self._parameters)
        _served.check_free(self._parameters, {**self._unserved, **dict(model.named_buffers())})
        for module in model.modules():
            if self._lookups and isinstance(module, torch.nn.parallel.DistributedDataParallel):
                raise InvalidArgument("the model is in DistributedDataParallel already, which would wait for gradients of psd.torch.Embedding: "
                                      "make the psd.torch.Optimizer of the module first (psd also combines gradients)")

    def _check_exchange(self) -> None:
        """Checks what may have changed since the last step."""
        check_dtypes(self._parameters, self.model.dtypes)
        check_shapes(self._parameters, self.model.shapes)
        check_module(self)
        if self._script is not None and not self._script.has(self._groups):
            raise InvalidArgument("the wrapped optimizer has other param_groups, by its load_state_dict() or add_param_group() perhaps: call "
                                  "those of the psd.torch.Optimizer instead")
        if ([id(group) for group in self.param_groups] != [id(group) for group in self._groups]
                or [id(parameter) for group in self._groups for parameter in group["params"]] != self._grouped):
            raise InvalidArgument("param_groups was replaced, or its parameters are others, which the daemon does not have: make a "
                                  "psd.torch.Optimizer of the whole model")
        if "grad_scale" in self.__dict__:  # set by a GradScaler, which removes both attributes only if step() returns
            for name in ("grad_scale", "found_inf"):
                self.__dict__.pop(name, None)
            self._abandon_push()
            raise InvalidArgument("gradients were sent during the backward pass, multiplied by the GradScaler's scale: a scaler "
                                  "needs overlap=False")

    def _check_values(self) -> None:
        """Rejects parameters that something other than a pull has changed."""
        key = self._watch.changed() or self._find_changed(self._watch.written())
        if key is None:
            return
        self._abandon_push()
        self._pull()
        raise InvalidArgument(f"parameter '{key}' was changed outside this optimizer (weight clipping, max_norm, an init "
                              "function, another optimizer, an average copied back), which the next pull would undo; the daemon's values are "
                              "back. Change parameters before the psd.torch.Optimizer is made, at a daemon that has no model yet, or after "
                              "close()")

    def _discard(self, loaded: Iterable[str]) -> None:
        """Discards the gradients, since values were loaded into these parameters before them. Fails if the daemon has
        nothing but the values that this trainer brought: the program resumes from a checkpoint."""
        before = list(self.client.versions)
        resumes = self.client.step == 0 and (self._info.initialized_model and not any(before) or before == self._exchange.restored)
        if not resumes:
            self._loads.log(loaded, "step() restores the daemon's values and pushes no gradient that was computed before it")
        if self._exchange.sampler is not None:
            self._exchange.sampler._before_discard()
        self.zero_grad()
        self._pull()
        for table in self._lookups:
            table.end_step()
        if resumes and self.client.versions == before:  # no other trainer has pushed
            raise InvalidArgument(f"load_state_dict() has changed parameter '{next(iter(loaded))}' before the first step, and the daemon's model "
                                  "has the values from before it, which are back: load the checkpoint before the psd.torch.Optimizer is "
                                  "made, or before it loads a state_dict(full=True), or resume at the daemon that has trained the model")

    def _find_changed(self, keys: list[str]) -> str | None:
        """The first of `keys`, parameters that PyTorch has written, whose values differ from the daemon's.
        DistributedDataParallel and others write unchanged values."""
        if not keys:
            return None
        before, newest = list(self.client.versions), self._zeros(self._device)
        self.client.pull(newest)
        moved, self.client.versions = self.client.versions != before, before
        values = self._views(newest)
        changed = next((key for key in keys if not self._watch.holds(key, values[key])), None)
        # If others have pushed meanwhile, a write of all parameters at once is that of DistributedDataParallel's construction.
        if changed is None or moved and len(keys) == len(self._parameters) and not any(map(is_shared, self._parameters.values())):
            self._watch.note()
            return None
        return changed

    def _log_replaced(self) -> None:
        if not self._info.initialized_model and any(not torch.equal(parameter.detach(), self._value_of[key].to(parameter.device))
                                                         for key, parameter in self._parameters.items()):
            log_replaced("the module", self.client.versions)

    def _detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._abandon_push()
        reader = RowReader(self.model, self.client)
        for table in self._lookups:
            table.detach(reader)
        _served.release(self, self._parameters)

    def _restore(self) -> None:
        """Undoes the changes of _attach() to the model."""
        for table in self._lookups:
            table.restore()
        self._detach()
        for parameter, values, gradient in self._before:
            parameter.data, parameter.grad = values, gradient

    def _zeros(self, device: object) -> _Flat:
        if device is None:
            return self.model.zeros()
        where = f"cuda:{_cuda.index_of(device)}"
        if self.model.is_float32:
            return torch.zeros(self.model.size, device=where)
        return torch.zeros(self.model.bytes, dtype=torch.uint8, device=where)

    def _views(self, flat: _Flat) -> dict[str, torch.Tensor]:
        """Views as separate tensors, each with its own version counter."""
        if isinstance(flat, torch.Tensor):
            return {key: view.data for key, view in self.model.views(flat).items()}
        return _dtypes.torch_views(self.model, flat)

    def _samples_of_step(self, given: int | None) -> int:
        sampler = self._exchange.sampler
        assigned = sampler._before_step() if sampler is not None else None
        return next(count for count in (given, assigned, self.samples) if count is not None)

    def _has_non_finite_gradient(self) -> bool:
        return any(not torch.isfinite(parameter.grad).all() for group in self._groups for parameter in group["params"]
                   if parameter.grad is not None)

    def _batch_of(self, taken: list[tuple[str, Rows]]) -> tuple[list[int], _psd.Rows | None]:
        """The versions that all gradients were computed from, and the rows with their gradients."""
        basis = list(self.client.versions)
        if not taken:
            return basis, None
        batch = self.client.rows()
        batch.make([(table, rows.ids) for table, rows in taken])
        for feature, (table, rows) in enumerate(taken):
            torch.from_numpy(batch.gradients(table))[torch.from_numpy(batch.places(feature).copy())] = rows.gradients
        for shard in range(self._info.shards, self._info.shards + self._info.row_shards):
            versions = [rows.versions[shard] for _, rows in taken if len(rows.versions) > shard]
            basis += [0] * (shard + 1 - len(basis))
            basis[shard] = min(filter(None, versions), default=0)
        return basis, batch

    def _pull(self) -> None:
        self.client.pull(self._values)
        self._note()

    def _note(self) -> None:
        """Records that the parameters hold the last pull, which counts as a write for autograd."""
        for key in self._watch.elsewhere:
            self._parameters[key].data.copy_(self._value_of[key])
        torch.autograd.graph.increment_version(list(self._parameters.values()))
        self._watch.note()

    def _attach(self, model: torch.nn.Module, overlap: bool) -> None:
        """Binds the model's parameters and gradients to the flat arrays."""
        _served.claim(self, self._parameters)
        for table in self._lookups:
            table.attach(self.client)
        if self._lookups:
            self._hooks.append(IgnoredByDdp(model))
        for key, parameter in self._parameters.items():
            self._before.append((parameter, parameter.data, parameter.grad))
            if parameter.device == self._value_of[key].device and parameter.is_contiguous() and not is_shared(parameter):
                parameter.data = self._value_of[key]
            self._attach_gradient(key, parameter)
        for layer in model.modules():
            if isinstance(layer, torch.nn.RNNBase):
                layer.flatten_parameters()  # on a GPU cuDNN needs its own memory, to which pulls are then copied
        self._watch = Watch(self._parameters, self._values, self._value_of)
        self._note()
        self._note_gradients(())
        if overlap:
            self._hooks += [parameter.register_post_accumulate_grad_hook(lambda _, key=key: self._send(key))
                            for key, parameter in self._parameters.items()]
        elif self._script is not None:
            self._hooks += [parameter.register_post_accumulate_grad_hook(lambda _, key=key, computed=self._exchange.computed: computed.add(key))
                            for key, parameter in self._parameters.items()]
        self._layout = layout_of(model)
        self._loads = Loads(self)
        self._hooks.append(self._loads)

    def _attach_gradient(self, key: str, parameter: torch.nn.Parameter) -> None:
        if parameter.device != self._gradient_of[key].device or not parameter.is_contiguous():
            parameter.grad = None  # autograd makes one in the parameter's layout
        elif parameter.grad is None or parameter.grad.is_sparse or parameter.grad.data_ptr() != self._gradient_memory[key]:
            parameter.grad = self._gradient_of[key].detach()  # a separate tensor, which Module.double() may convert

    def _gather(self, key: str) -> None:
        """Copies a parameter's gradient to its place in the flat array."""
        gradient, place = self._parameters[key].grad, self._gradient_of[key]
        if gradient is None:
            place.zero_()
        elif gradient.is_sparse:
            place.copy_(gradient.to_dense())
        elif gradient.data_ptr() != self._gradient_memory[key]:
            place.copy_(gradient)

    def _abandon_push(self) -> None:
        """Abandons the push that a backward pass has started."""
        self._exchange.push, self._exchange.sent = None, {}

    @eager
    @torch.no_grad()
    def _send(self, key: str) -> None:
        """Called when the backward pass has computed the gradient of a parameter."""
        exchange = self._exchange
        if self._loads.pending:
            return  # step() decides whether the gradient is pushed
        if key in exchange.sent:
            raise Error(f"the gradient of '{key}' was sent already, after the previous backward pass; to accumulate gradients over "
                        "several backward passes use overlap=False, and to discard one use zero_grad() of the optimizer")
        if exchange.push is None:
            hyperparameters = self._hyperparameters()
            exchange.push_numbers = self._script.numbers() if self._script is not None else []
            exchange.push_samples = self._samples_of_step(None)
            exchange.push = self.client.partial_push(self._gradients, exchange.push_samples, hyperparameters=hyperparameters)
        self._gather(key)
        exchange.push.ready(*self._slices[key])
        gradient = self._parameters[key].grad
        assert gradient is not None
        exchange.sent[key] = gradient._version

    def _finish(self, push: _psd.PartialPush) -> _psd.PushInfo:
        if self._script is not None and self._script.numbers() != self._exchange.push_numbers:
            self._abandon_push()
            raise Error("param_groups were changed after gradients had been sent; with overlap=True change them before the backward "
                        "pass or after step(), and call zero_grad() now")
        sent = self._exchange.sent
        for key, parameter in self._parameters.items():
            if key not in sent:
                self._gather(key)
                push.ready(*self._slices[key])
            elif parameter.grad is None or parameter.grad._version != sent[key]:
                self._abandon_push()
                raise Error(f"the gradient of '{key}' was changed after it had been sent, by clipping perhaps, which needs "
                            "overlap=False (or `clip` in the daemon's configuration)")
        self._abandon_push()
        return push.finish().wait()


def _cuda_device_of(parameters: dict[str, torch.nn.Parameter]) -> torch.device | None:
    """The GPU that all parameters are on; None: they are on the CPU or on several devices, or the client cannot find
    CUDA."""
    devices = {parameter.device for parameter in parameters.values()}
    if len(devices) != 1 or (device := devices.pop()).type != "cuda":
        return None
    if _cuda.has_runtime():
        return device
    _log.warning("parameters on %s are copied through host memory: no libcudart was found in this process", device)
    return None
