"""CUDA support for psd.Client's `device`: finds the runtime, whose functions the client library looks up by name in the
process, and makes the client's stream wait for pending work on arrays."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from .errors import InvalidArgument

_FUNCTION = "cudaIpcOpenMemHandle"  # stands for all functions that are needed
_VERSIONS = (13, 12, 11)


def index_of(device: object) -> int:
    """The index N of "cuda:N", or of an object with that string, such as a torch.device."""
    kind, _, index = str(device).partition(":")
    if kind != "cuda" or not index.isascii() or not index.isdecimal():
        raise InvalidArgument(f'device is "cuda:N", or None for host memory, not {str(device)!r}')
    return int(index)


def has_runtime() -> bool:
    """Whether the process has a CUDA runtime that the client library finds. PyTorch with CUDA includes one; a runtime
    that another package has loaded with local visibility is made globally visible."""
    if _is_known():
        return True
    for path in _libraries():
        try:
            ctypes.CDLL(path, mode=os.RTLD_GLOBAL)
        except OSError:
            continue
        if _is_known():
            return True
    return False


def load_runtime(device: int) -> None:
    if not has_runtime():
        raise InvalidArgument(f"device cuda:{device}: this process has no CUDA runtime; import torch (with CUDA) first, or put "
                              "libcudart.so where the system looks for libraries")


def export_dlpack(array: Any, stream: int) -> Any:
    """The array as a DLPack capsule. Its library makes `stream` wait for the pending work of the array's current
    stream."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        with torch.cuda.device(array.device):  # PyTorch takes the current stream of this device
            return array.__dlpack__(stream=stream)
    return array.__dlpack__(stream=stream)


def _is_known() -> bool:
    return hasattr(ctypes.CDLL(None), _FUNCTION)


def _libraries() -> Iterator[str]:
    """Paths of loaded libraries first, then candidates to load."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        yield from sorted({line.split(maxsplit=5)[5].strip() for line in maps if "/libcudart.so" in line})
    yield from (f"libcudart.so.{version}" for version in _VERSIONS)
    packages = importlib.util.find_spec("nvidia")
    for folder in (packages.submodule_search_locations or ()) if packages else ():
        for name in ("cu13", "cuda_runtime"):
            yield from sorted(str(path) for path in pathlib.Path(folder, name, "lib").glob("libcudart.so.*"))
