"""PyTorch: psd.torch.Optimizer stands where a local optimizer stood."""

from __future__ import annotations

import dataclasses
import logging
import weakref
from collections.abc import Callable
from typing import Any, Union

import numpy as np
import torch

from . import _cuda, _psd
from ._dealt_sampler import DealtSampler
from ._diloco import DiLoCo
from ._parameters import LoadRefused, check_dtypes, check_requires_grad
from ._psd import keep_freed_memory
from ._training import Training
from .client import Client, Model, Table
from .errors import Error, InvalidArgument

__all__ = ["DealtSampler", "DiLoCo", "Embedding", "Optimizer", "keep_freed_memory"]

_log = logging.getLogger("psd")
_NOTHING = np.zeros(0, np.float32)
_Flat = Union[np.ndarray, torch.Tensor]


class _Group(dict[str, Any]):
    """A parameter group that has none of a local optimizer's numbers."""

    def __missing__(self, key: str) -> Any:
        raise InvalidArgument(f"a psd.torch.Optimizer has no {key!r}: the daemon's configuration says it, \"optimizer\" of "
                              "the parameters' group; its \"schedule\" stands in for a scheduler")


class Embedding(torch.nn.Module):
    """Rows of an embedding table of the daemon, by any 64-bit ids: nn.Embedding without the table. Each forward pass pulls
    the rows it uses; step() of the psd.torch.Optimizer of its model pushes their gradients. It has no parameter, and works
    once that optimizer is made. Modules of one name share a table."""

    def __init__(self, name: str, dim: int, *, initial: str = "uniform", scale: float = 0.01, seed: int = 1):
        """`initial`, `scale`, `seed`: what a row begins with, see psd.Table."""
        super().__init__()
        self.table = Table(name, dim, initial, scale, seed)
        self._optimizer: weakref.ref[Optimizer] | None = None

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of an int64 tensor of ids of any shape: [*ids.shape, dim]. A negative id is the unsigned one of the same
        bits."""
        optimizer = self._optimizer() if self._optimizer is not None else None
        if optimizer is None:
            raise InvalidArgument(f"embedding '{self.table.name}' has no daemon: make a psd.torch.Optimizer of the model first")
        return optimizer._look_up(self.table.name, ids)

    def extra_repr(self) -> str:
        return f"{self.table.name!r}, dim={self.table.dim}"


@dataclasses.dataclass
class _Lookup:
    """Rows that a forward pass used, whose gradients the next push takes."""
    table: str
    rows: _psd.Rows
    leaf: torch.Tensor
    versions: list[int]


class Optimizer(Training, torch.optim.Optimizer):
    """Pushes gradients to a daemon and pulls what became of the parameters. Which optimizer runs there, at which rate and by
    which policy, its configuration says.

    Those parameters of `model` that require a gradient when this is made are the daemon's model, by name and shape; they
    must be float32. On the CPU, or all on one GPU, they become views of one flat array, and so do their gradients: nothing is
    copied here. A GPU's travel through memory of the daemon's GPUs where it shares that; on several devices they go by way
    of host memory. The first trainer's parameters become the model's; the others take over what is there. Buffers, such as
    BatchNorm's running means, stay each trainer's own.
    """

    def __init__(self, model: torch.nn.Module, server: str | None = None, *, rank: int | None = None,
                 world_size: int | None = None, name: str | None = None, samples: int = 1, overlap: bool = False,
                 **options: Any):
        """`server`, `rank`, `world_size`: as psd.Client has them, from the environment of torchrun where None. `samples`:
        examples behind a gradient, by which rounds weigh it. `overlap`: each gradient leaves when the backward pass has
        made it, so that nothing may change it afterwards: no second backward pass before step(), no clipping.
        `options`: of psd.Client; its `device` is that of the parameters, and None has those of a GPU go by way of host memory."""
        if not isinstance(model, torch.nn.Module):
            raise InvalidArgument(f"psd.torch.Optimizer is made of a module, whose parameters have names, not of a {type(model).__name__}: "
                                  "give the model itself in place of model.parameters()")
        self._parameters = {key: value for key, value in model.named_parameters() if value.requires_grad}
        self._unserved = {key: value for key, value in model.named_parameters() if not value.requires_grad}
        embeddings = [module for module in model.modules() if isinstance(module, Embedding)]
        _check(self._parameters, embeddings)
        if overlap and embeddings:
            raise InvalidArgument("overlap=True is for models without psd.torch.Embedding: gradients of rows are pushed by step()")
        super().__init__([_Group(params=list(self._parameters.values()) or [torch.nn.Parameter(torch.zeros(0))])], {})
        self.param_groups = [_Group(group) for group in self.param_groups]
        self.samples = samples
        self._step_supports_amp_scaling = overlap  # then a GradScaler shows itself to step(), which refuses it
        self._sampler: DealtSampler | None = None
        tables = {module.table.name: module.table for module in embeddings}
        self.model = Model.of(name or type(model).__name__, self._parameters, tables.values())
        self._lookups: list[_Lookup] = []
        for module in embeddings:
            module._optimizer = weakref.ref(self)
        options.setdefault("device", _cuda_device_of(self._parameters))
        self._values, self._gradients = self._zeros(options["device"]), self._zeros(options["device"])
        self._value_of, self._gradient_of = self._views(self._values), self._views(self._gradients)
        for key, parameter in self._parameters.items():
            self._value_of[key].copy_(parameter.detach())
        self.client = Client(server, **options)
        try:
            info = self._info = self.client.join(self.model, self._values, rank, world_size)
            self._check_policy(info)
            self._pull()
        except BaseException:
            self.client.close()
            raise
        self._attach()
        for layer in model.modules():
            if isinstance(layer, torch.nn.RNNBase):
                layer.flatten_parameters()  # cuDNN wants memory of its own on a GPU, which pulls are then copied to
        self.last_push: _psd.PushInfo | None = None
        """What became of the newest gradient: a psd.PushInfo."""
        self._push: _psd.PartialPush | None = None  # that is under way while backward passes run
        self._push_samples = 0  # of it
        self._sent: dict[str, int] = {}  # of it, by name: the version of the gradient that was sent
        self._hooks = [parameter.register_post_accumulate_grad_hook(lambda _, key=key: self._send(key))
                       for key, parameter in self._parameters.items()] if overlap else []
        refused = LoadRefused(self, "the daemon has its values, and the next step would bring them back")
        self._hooks += [module.register_load_state_dict_pre_hook(refused) for module in model.modules()]
        if buffers := [key for key, buffer in model.named_buffers() if buffer.is_floating_point()]:
            _log.info("buffers stay each trainer's own: %s", ", ".join(buffers))

    @property
    def rank(self) -> int:
        return self._info.rank

    def close(self) -> None:
        """Says goodbye and closes the connection. The parameters keep their values, and backward passes send nothing more."""
        self._let_go()
        super().close()

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        self._let_go()
        super().__exit__(kind, *more)

    def _let_go(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._give_up()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, samples: int | None = None) -> Any:
        """Pushes the gradients, waits for what becomes of them, and pulls the parameters. A parameter without a gradient
        counts as one whose gradient is zero. `samples`: of this step; None: those that a DealtSampler took for it, else what
        the optimizer was made with."""
        check_dtypes(self._parameters)
        check_requires_grad(self)
        if "grad_scale" in self.__dict__:  # a GradScaler's, which takes both back only where this returns
            for name in ("grad_scale", "found_inf"):
                self.__dict__.pop(name, None)
            self._give_up()
            raise InvalidArgument("gradients have left as the backward pass made them, with the GradScaler's scale: a scaler "
                                  "needs overlap=False")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._push is None:
            count = self._samples_of_step(samples)
            for key in self._parameters:
                self._gather(key)
            basis, rows = self._take_rows()
            self.last_push = self.client.push(self._gradients, count, basis=basis, rows=rows)
        elif samples is not None and samples != self._push_samples:
            raise InvalidArgument(f"a gradient of {self._push_samples} samples has left already, and step() says {samples}: with "
                                  "overlap=True set optimizer.samples before the backward pass")
        else:
            self.last_push = self._finish(self._push)
        self._pull()
        return loss

    @torch.no_grad()
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets the gradients to zero; they stay where they are, whatever `set_to_none` says. What a backward pass has begun to
        send is given up."""
        self._give_up()
        if self._sampler is not None:
            self._sampler._clearing()
        self._gradients[:] = 0
        self._lookups.clear()
        for key, parameter in self._parameters.items():
            self._attach_gradient(key, parameter)

    def state_dict(self) -> dict[str, Any]:
        """Nothing of value: the optimizer's state is the daemon's, which keeps it as its `durability` says."""
        return {"state": {}, "param_groups": []}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict.get("state"):
            raise InvalidArgument("a psd.torch.Optimizer has no state: the daemon has it, and brings it back from what "
                                  "its configuration's \"durability\" keeps")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "model"):
            raise InvalidArgument("the daemon's model stays as it is: make a psd.torch.Optimizer of the whole model")
        super().add_param_group(param_group)

    def __reduce__(self) -> Any:
        raise TypeError("a psd.torch.Optimizer cannot be pickled: it is a connection; make one in each process")

    def _zeros(self, device: object) -> _Flat:
        return self.model.zeros() if device is None else torch.zeros(self.model.size, device=f"cuda:{_cuda.index_of(device)}")

    def _views(self, flat: _Flat) -> dict[str, torch.Tensor]:
        """Each a tensor of its own to PyTorch, which counts its changes."""
        if isinstance(flat, torch.Tensor):
            return {key: view.data for key, view in self.model.views(flat).items()}
        return {key: torch.from_numpy(view) for key, view in self.model.views(flat).items()}

    def _look_up(self, table: str, ids: torch.Tensor) -> torch.Tensor:
        if ids.dtype.is_floating_point or ids.dtype.is_complex:
            raise TypeError(f"ids of table '{table}' are integers, not {ids.dtype}")
        rows = self.client.rows()
        rows.make([(table, ids.detach().reshape(-1).to("cpu", torch.int64).contiguous())])
        pulled = self.client.begin_pull(_NOTHING, rows).wait()
        leaf = torch.from_numpy(rows.values(table)).to(ids.device)
        if torch.is_grad_enabled():
            leaf.requires_grad_()
            self._lookups.append(_Lookup(table, rows, leaf, pulled.versions))
        places = torch.from_numpy(rows.places(0).copy()).to(ids.device)
        return torch.nn.functional.embedding(places, leaf).view(*ids.shape, leaf.shape[1])

    def _samples_of_step(self, given: int | None) -> int:
        dealt = self._sampler._stepping() if self._sampler is not None else None
        return next(count for count in (given, dealt, self.samples) if count is not None)

    def _has_non_finite_gradient(self) -> bool:
        return any(not torch.isfinite(parameter.grad).all() for parameter in self._parameters.values()
                   if parameter.grad is not None)

    def _take_rows(self) -> tuple[list[int], _psd.Rows | None]:
        """The gradients of rows since the last push, and the versions that all gradients were computed from."""
        used = [(lookup, lookup.leaf.grad) for lookup in self._lookups if lookup.leaf.grad is not None]
        self._lookups.clear()
        basis = list(self.client.versions)
        if not used:
            return basis, None
        rows = self.client.rows()
        rows.make([(lookup.table, lookup.rows.ids(lookup.table)) for lookup, _ in used])
        for feature, (lookup, gradient) in enumerate(used):
            gradients = torch.from_numpy(rows.gradients(lookup.table))
            gradients.index_add_(0, torch.from_numpy(rows.places(feature).copy()), gradient.cpu())
        for shard in range(self._info.shards, self._info.shards + self._info.row_shards):
            versions = [lookup.versions[shard] for lookup, _ in used if len(lookup.versions) > shard]
            basis += [0] * (shard + 1 - len(basis))
            basis[shard] = min(filter(None, versions), default=0)
        return basis, rows

    def _pull(self) -> None:
        self.client.pull(self._values)
        for key, parameter in self._parameters.items():
            if parameter.data_ptr() != self._value_of[key].data_ptr():
                parameter.data.copy_(self._value_of[key])

    def _attach(self) -> None:
        for key, parameter in self._parameters.items():
            if parameter.device == self._value_of[key].device:
                parameter.data = self._value_of[key]
            self._attach_gradient(key, parameter)

    def _attach_gradient(self, key: str, parameter: torch.nn.Parameter) -> None:
        if parameter.device != self._gradient_of[key].device:
            parameter.grad = None
        elif parameter.grad is None or parameter.grad.data_ptr() != self._gradient_of[key].data_ptr():
            parameter.grad = self._gradient_of[key].detach()  # another tensor, which Module.double() may make what it likes

    def _gather(self, key: str) -> None:
        """Brings a parameter's gradient to its place in the flat array."""
        gradient, place = self._parameters[key].grad, self._gradient_of[key]
        if gradient is None:
            place.zero_()
        elif gradient.is_sparse:
            place.copy_(gradient.to_dense())
        elif gradient.data_ptr() != place.data_ptr():
            place.copy_(gradient)

    def _give_up(self) -> None:
        """Sends nothing more of what a backward pass has made."""
        self._push, self._sent = None, {}

    @torch.no_grad()
    def _send(self, key: str) -> None:
        """The backward pass has made the gradient of a parameter."""
        if key in self._sent:
            raise Error(f"the gradient of '{key}' was sent when the backward pass before had made it; gradients that add up "
                        "over several backward passes need overlap=False, and one that is to be forgotten zero_grad() of the optimizer")
        if self._push is None:
            self._push_samples = self._samples_of_step(None)
            self._push = self.client.partial_push(self._gradients, self._push_samples)
        self._gather(key)
        self._ready(self._push, key)
        gradient = self._parameters[key].grad
        assert gradient is not None
        self._sent[key] = gradient._version

    def _ready(self, push: _psd.PartialPush, key: str) -> None:
        begins = [place.start for place in self.model.places.values()] + [self.model.size]
        begin = self.model.places[key].start
        push.ready(begin, begins[begins.index(begin) + 1] - begin)  # with the padding behind it

    def _finish(self, push: _psd.PartialPush) -> _psd.PushInfo:
        sent = self._sent
        for key, parameter in self._parameters.items():
            if key not in sent:
                self._gather(key)
                self._ready(push, key)
            elif parameter.grad is None or parameter.grad._version != sent[key]:
                self._give_up()
                raise Error(f"the gradient of '{key}' was changed after it had been sent, by clipping perhaps, which needs "
                            "overlap=False (or `clip` in the daemon's configuration)")
        self._push, self._sent = None, {}
        return push.finish().wait()


def _cuda_device_of(parameters: dict[str, torch.nn.Parameter]) -> torch.device | None:
    """That all of them are on; None: they are on the CPU, on several devices, or CUDA is out of the client's reach."""
    devices = {parameter.device for parameter in parameters.values()}
    if len(devices) != 1 or (device := devices.pop()).type != "cuda":
        return None
    if _cuda.has_runtime():
        return device
    _log.warning("parameters on %s go by way of host memory: no libcudart is found in this process", device)
    return None


def _check(parameters: dict[str, torch.nn.Parameter], embeddings: list[Embedding]) -> None:
    if not parameters and not embeddings:
        raise InvalidArgument("the model has no parameter that requires a gradient")
    tables: dict[str, Table] = {}
    for module in embeddings:
        if tables.setdefault(module.table.name, module.table) != module.table:
            raise InvalidArgument(f"two embeddings of table '{module.table.name}' differ in what its rows are")
    check_dtypes(parameters)
