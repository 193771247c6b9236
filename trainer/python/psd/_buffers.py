"""A model's buffers on the wire: a file in the format of safetensors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .errors import InvalidArgument, ProtocolMismatch

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4",
           "U16": "<u2", "U8": "|u1", "BOOL": "|b1"}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
# Of ml_dtypes. Without it they are read as integers of the same size.
_EXTENDED = {"BF16": ("bfloat16", "<u2"), "F8_E4M3": ("float8_e4m3fn", "|u1"), "F8_E5M2": ("float8_e5m2", "|u1")}


class Entry(NamedTuple):
    """A buffer: its dtype as safetensors names it, its shape, and its bytes, little-endian and row-major."""
    dtype: str
    shape: tuple[int, ...]
    values: bytes | memoryview


def encode(entries: Mapping[str, Entry]) -> bytes:
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape, values) in entries.items():
        if name == "__metadata__":
            raise InvalidArgument("a buffer has the name __metadata__, under which safetensors files keep their metadata: rename it")
        begin, end = end, end + len(values)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(entry.values for entry in entries.values())])


def decode(file: bytes) -> dict[str, Entry]:
    """The daemon has checked the file; empty: there are no buffers."""
    if not file:
        return {}
    begin = 8 + int.from_bytes(file[:8], "little")
    data = memoryview(file)[begin:]
    header: dict[str, Any] = json.loads(file[8:begin])
    header.pop("__metadata__", None)
    try:
        return {name: Entry(entry["dtype"], tuple(entry["shape"]), data[slice(*entry["data_offsets"])]) for name, entry in header.items()}
    except (KeyError, TypeError) as error:
        raise ProtocolMismatch(f"the daemon's buffers are malformed: {error}") from None


def of_array(name: str, value: Any) -> Entry:
    array = np.asarray(value)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    extended = {numpy_name: safetensors_name for safetensors_name, (numpy_name, _) in _EXTENDED.items()}
    dtype = _NAMES.get(array.dtype) or extended.get(array.dtype.name)
    if dtype is None:
        raise InvalidArgument(f"buffer '{name}' has dtype {array.dtype}; a daemon's buffers have {', '.join([*_DTYPES, *_EXTENDED])}")
    return Entry(dtype, array.shape, array.tobytes())


def to_array(name: str, entry: Entry) -> np.ndarray:
    dtype: Any = _DTYPES.get(entry.dtype)
    if dtype is None and entry.dtype in _EXTENDED:
        extended, dtype = _EXTENDED[entry.dtype]
        try:
            import ml_dtypes
            dtype = getattr(ml_dtypes, extended)
        except (ImportError, AttributeError):
            pass
    array = np.frombuffer(entry.values, dtype or np.uint8)
    if array.size != math.prod(entry.shape):  # a dtype that numpy does not have
        return array.copy()
    return array.reshape(entry.shape).copy()
