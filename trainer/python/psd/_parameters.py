"""Checks of a PyTorch model's parameters, when a daemon starts to serve them and afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from ._embedding import Embedding
from .errors import InvalidArgument

_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


class TrainsServed(Protocol):
    """A trainer of a model whose parameters a daemon serves."""

    _module: torch.nn.Module
    _parameters: dict[str, torch.nn.Parameter]
    """The served parameters."""
    _unserved: dict[str, torch.nn.Parameter]
    """The parameters that were frozen at construction."""
    _layout: list[int]
    """The layout_of() the module at construction."""


def parameters_of(model: torch.nn.Module) -> tuple[dict[str, torch.nn.Parameter], dict[str, torch.nn.Parameter]]:
    """The model's parameters by name: those that require a gradient, which are served, and the others. Neither includes
    rows of tables."""
    rows = {id(module.rows) for module in model.modules() if isinstance(module, Embedding)}
    named = {key: value for key, value in model.named_parameters() if id(value) not in rows}
    return ({key: value for key, value in named.items() if value.requires_grad},
            {key: value for key, value in named.items() if not value.requires_grad})


def sparse_in(model: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter]) -> list[str]:
    """Names of those of `parameters` that get sparse gradients."""
    sparse = {id(module.weight) for module in model.modules()
              if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse}
    return [key for key, parameter in parameters.items() if id(parameter) in sparse]


def check_kinds(parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Rejects parameters that cannot be served."""
    for key, parameter in parameters.items():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise InvalidArgument(f"parameter '{key}' has no shape yet (a lazy module's): run one forward pass first")
        if parameter.is_meta:
            raise InvalidArgument(f"parameter '{key}' has no memory (device meta): load the model first")
        if type(parameter.data) is not torch.Tensor:
            raise InvalidArgument(f"parameter '{key}' is a {type(parameter.data).__name__}; the daemon's are whole tensors of this "
                                  "process (no FSDP, no tensor parallelism)")
        if parameter.dtype not in _DTYPES:
            raise InvalidArgument(f"parameter '{key}' is {parameter.dtype}; the daemon's are float32, bfloat16 or float16, and its "
                                  "optimizer computes with float32: convert the module, by float() for example")


def check_dtypes(parameters: Mapping[str, torch.nn.Parameter], dtypes: Mapping[str, str]) -> None:
    """Rejects parameters whose dtype was changed after the join. `dtypes`: of the model, by the same names."""
    if [*map(_DTYPES.get, [parameter.dtype for parameter in parameters.values()])] == [*dtypes.values()]:
        return
    for key, parameter in parameters.items():
        if _DTYPES.get(parameter.dtype) != dtypes[key]:
            raise InvalidArgument(f"parameter '{key}' is {parameter.dtype} now, and {dtypes[key]} in the daemon's model: convert the module "
                                  "before the first trainer joins, at a daemon that has no model yet")


def check_shapes(parameters: Mapping[str, torch.nn.Parameter], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Rejects parameters whose `data` was replaced by a tensor of another shape after the join. `shapes`: by the same
    names."""
    if [parameter.shape for parameter in parameters.values()] == list(shapes.values()):
        return
    for key, parameter in parameters.items():
        if parameter.shape != shapes[key]:
            raise InvalidArgument(f"parameter '{key}' has shape {tuple(parameter.shape)} now, and {shapes[key]} in the daemon's model: set the "
                                  "shape before the first trainer joins, at a daemon that has no model yet")


def layout_of(module: torch.nn.Module) -> list[int]:
    """The identities of a module's parameters in a fixed order, several times where it has them several times."""
    parameters = [id(parameter) for parameter in module._parameters.values()]
    for child in module._modules.values():
        if child is not None:
            parameters += layout_of(child)
    return parameters


def check_module(trainer: TrainsServed) -> None:
    """Rejects parameters that were added, replaced, removed, frozen or unfrozen after `trainer` was made: a removed or
    frozen one would be pushed as unchanged, and an added or unfrozen one would not be shared with other trainers."""
    made = f"before the psd.torch.{type(trainer).__name__} is made, at a daemon that has no model yet, or set requires_grad back"
    for key, parameter in trainer._parameters.items():
        if not parameter.requires_grad:
            raise InvalidArgument(f"parameter '{key}' requires no gradient any more, and is in the daemon's model: freeze it {made}")
    for key, parameter in trainer._unserved.items():
        if parameter.requires_grad:
            raise InvalidArgument(f"parameter '{key}' requires a gradient now, and is not in the daemon's model: unfreeze it {made}")
    if layout_of(trainer._module) != trainer._layout:
        _check_layout(trainer)


def _check_layout(trainer: TrainsServed) -> None:
    remedy = f"close() this psd.torch.{type(trainer).__name__}, and make another of the module as it is, at a daemon that has no model yet"
    there, known = dict(trainer._module.named_parameters()), {*trainer._layout}
    ids = {id(parameter) for parameter in there.values()}
    for key, parameter in trainer._parameters.items():
        if id(parameter) not in ids:
            raise InvalidArgument(f"parameter '{key}' was {'replaced' if key in there else 'removed'} in the module: {remedy}")
    for key, parameter in there.items():
        if parameter.requires_grad and id(parameter) not in known:
            raise InvalidArgument(f"parameter '{key}' was added to the module, and is not in the daemon's model: {remedy}")
