"""What psd.Client's `device` needs of CUDA: the runtime's functions, which the client library looks up by name among those of
the process, and arrays that wait for what is under way on them."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from .errors import InvalidArgument

_FUNCTION = "cudaIpcOpenMemHandle"  # as good as all of the others
_VERSIONS = (13, 12, 11)


def index_of(device: object) -> int:
    """Of "cuda:N", or what says so of itself, as a torch.device does."""
    kind, _, index = str(device).partition(":")
    if kind != "cuda" or not index.isascii() or not index.isdecimal():
        raise InvalidArgument(f'device is "cuda:N", or None for host memory, not {str(device)!r}')
    return int(index)


def has_runtime() -> bool:
    """Whether the process has a CUDA runtime that the client library finds. PyTorch brings one with CUDA; what another package
    has loaded for itself is made known to all."""
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


def hand_over(array: Any, stream: int) -> Any:
    """The array as a DLPack capsule. Its library has `stream` wait for what the array's current stream has under way."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        with torch.cuda.device(array.device):  # whose current stream PyTorch takes
            return array.__dlpack__(stream=stream)
    return array.__dlpack__(stream=stream)


def _is_known() -> bool:
    return hasattr(ctypes.CDLL(None), _FUNCTION)


def _libraries() -> Iterator[str]:
    """Those that are loaded already, then where others may be."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        yield from sorted({line.split(maxsplit=5)[5].strip() for line in maps if "/libcudart.so" in line})
    yield from (f"libcudart.so.{version}" for version in _VERSIONS)
    packages = importlib.util.find_spec("nvidia")
    for folder in (packages.submodule_search_locations or ()) if packages else ():
        for name in ("cu13", "cuda_runtime"):
            yield from sorted(str(path) for path in pathlib.Path(folder, name, "lib").glob("libcudart.so.*"))
