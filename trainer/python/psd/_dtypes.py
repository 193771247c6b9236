"""The dtypes of a model's tensors, and flat arrays of elements of several."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import InvalidArgument

ORDER = ("f32", "bf16", "f16")
"""In which a model's tensors are ordered, so that the daemon needs few shards."""
BYTES = {"f32": 4, "bf16": 2, "f16": 2}
"""Of an element."""


_VERSION_DTYPES = {
    "F64": "float64", "I64": "int64", "U64": "uint64", "F32": "float32", "I32": "int32", "U32": "uint32", "F16": "float16",
    "BF16": "bfloat16", "I16": "int16", "U16": "uint16", "I8": "int8", "U8": "uint8", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "BOOL": "bool"}
"""The dtypes of versions' tensors, by their names in a .safetensors file, as numpy, ml_dtypes and PyTorch name them."""
_VERSION_NAMES = {name: dtype for dtype, name in _VERSION_DTYPES.items()}
_OF_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def version_bytes(dtype: str) -> int:
    """Of an element of a version's tensor."""
    name = _VERSION_DTYPES[dtype]
    return {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}.get(name) or np.dtype(name).itemsize


def version_view(part: Any, dtype: str) -> Any:
    """The elements of bytes of a version. numpy has those that it does not know as of the package ml_dtypes, or without it
    as unsigned integers of the same bits."""
    name = _VERSION_DTYPES[dtype]
    if not isinstance(part, np.ndarray):
        return part.view(_torch_type(part, name))
    return part.view(_of_ml_dtypes(name) if name in _OF_ML_DTYPES else name)


def version_dtype(tensor: str, array: Any, given: str | None) -> str:
    """The dtype of a version's tensor that gets the elements of `array`; `given`: the dtype of their bits."""
    name = array.dtype.name if isinstance(array, np.ndarray) else str(array.dtype).removeprefix("torch.")
    found = _VERSION_NAMES.get(name)
    if given is None:
        if found is None:
            raise InvalidArgument(f"tensor '{tensor}' has dtype {name}; versions have {', '.join(_VERSION_NAMES)}")
        return found
    if given not in _VERSION_DTYPES:
        raise InvalidArgument(f"tensor '{tensor}' is given with dtype '{given}'; expected one of {', '.join(_VERSION_DTYPES)}")
    if found is None or version_bytes(found) != version_bytes(given):
        raise InvalidArgument(f"tensor '{tensor}' has elements of {name}, which are not as large as those of {given}")
    return given


def dtype_of(array: Any) -> str:
    """The dtype of a tensor for values like those of `array`: float32 except for arrays of bfloat16 and float16."""
    return {"bfloat16": "bf16", "float16": "f16"}.get(str(getattr(array, "dtype", "")).removeprefix("torch."), "f32")


def is_native(flat: Any) -> bool:
    """Whether a flat array has the bytes of a model whose tensors are not all float32."""
    return str(getattr(flat, "dtype", "")).removeprefix("torch.") == "uint8"


def as_float32(flat: Any, size: int) -> Any:
    """A flat array as the client takes it: a native one as float32 of the same bytes. `size`: the elements of a model that
    has native arrays, which a float32 one has, too; 0: another model."""
    if not is_native(flat):
        if size > 0 and np.shape(flat) not in ((size,), (0,)):
            raise InvalidArgument(f"an array has the shape {np.shape(flat)}; the model's have uint8, from Model.zeros(), or {size} float32 elements")
        return flat
    return flat.view(np.float32 if isinstance(flat, np.ndarray) else _torch_type(flat, "float32"))


def view(part: Any, dtype: str) -> Any:
    """The elements of a part of a native flat array."""
    if not isinstance(part, np.ndarray):
        return part.view(_torch_type(part, {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[dtype]))
    return part.view({"f32": np.float32, "bf16": _numpy_bfloat16(), "f16": np.float16}[dtype])


def torch_views(model: Any, flat: np.ndarray) -> dict[str, Any]:
    """Views of a model's tensors as PyTorch's, each with a storage of its own, since torch.save() saves none of several
    dtypes."""
    import torch
    if not is_native(flat):
        return {name: torch.from_numpy(each) for name, each in model.views(flat).items()}
    return {name: view(torch.from_numpy(flat[place]), model.dtypes[name]).reshape(model.shapes[name])
            for name, place in model.native_places.items()}


def assign(to: Any, values: Any) -> None:
    """Sets the values of a view; those of bfloat16 as bits are rounded to nearest even."""
    if getattr(to, "dtype", None) == np.uint16 and getattr(values, "dtype", None) != np.uint16:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        values = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    to[...] = values


def ordered(shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """The tensors by dtype, otherwise in the given order."""
    return {name: shapes[name] for dtype in ORDER for name in shapes if dtypes[name] == dtype}


def _torch_type(flat: Any, name: str) -> Any:
    return getattr(sys.modules[type(flat).__module__], name)


def _numpy_bfloat16() -> Any:
    return _of_ml_dtypes("bfloat16")


def _of_ml_dtypes(name: str) -> Any:
    """numpy's type of that name where the package ml_dtypes is installed, as with JAX, or else that of its bits."""
    try:
        import ml_dtypes
    except ImportError:
        return np.uint16 if name == "bfloat16" else np.uint8
    return getattr(ml_dtypes, name)
