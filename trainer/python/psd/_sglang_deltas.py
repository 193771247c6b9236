"""Deltas between two versions, in the format that /pull_weights of SGLang applies.

For each tensor that changed, a delta has one zstd frame. The encoding of the delta says what it holds:

- `overwrite`: how many bytes differ, their places in the tensor (both as little-endian u32), and their new values;
- `xor`: the bytes of the tensor, XORed with those before.

The frames have stored blocks, and zeros as blocks of one repeated byte, so they need no compressor."""

from __future__ import annotations

from . import _install  # noqa: F401, before all else

# isort: split

import dataclasses
import json
import math
import struct
import zlib
from collections.abc import Iterator

import numpy as np

from ._versions import Held

_BLOCK = 128 << 10  # most bytes of a zstd block, and those that are compared at a time
_FRAME = b"\x28\xb5\x2f\xfd\xc0\x38"  # magic number; a content size of 8 bytes and a window of _BLOCK follow
_STORED, _REPEATED = 0, 1  # kinds of blocks
_HEAD, _ZEROS = 3, 4  # bytes of a block's header, and of a block of zeros
_GAP = _HEAD + _ZEROS  # zeros up to here take less space among stored bytes
_END = b"\x01\0\0"  # an empty stored block, the last one
_FRAME_BYTES = len(_FRAME) + 8 + len(_END)  # of a frame besides its blocks


@dataclasses.dataclass(frozen=True)
class _Changed:
    """A tensor that changed, in `count` bytes. `sizes`: of its frame, by the encoding."""
    name: str
    before: np.ndarray
    after: np.ndarray
    count: int
    sizes: dict[str, float]


class Delta:
    """What leads from one version to another, in the encoding that takes less space."""

    def __init__(self, tensors: list[_Changed]):
        sizes = _sum(tensors)
        self.encoding = min(sizes, key=lambda encoding: sizes[encoding])
        self._tensors = tensors

    @property
    def names(self) -> list[str]:
        """The tensors that changed."""
        return [tensor.name for tensor in self._tensors]

    def file(self) -> Iterator[bytes | memoryview]:
        """The pieces of the `.safetensors` file, whose metadata is the Adler-32 of each tensor."""
        header: dict[str, object] = {"__metadata__": {tensor.name: f"{zlib.adler32(tensor.after.data):08x}" for tensor in self._tensors}}
        end = 0
        for tensor in self._tensors:
            size = int(tensor.sizes[self.encoding])
            header[tensor.name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        yield struct.pack("<Q", len(text)) + text
        for tensor in self._tensors:
            xor = self.encoding == "xor"
            yield _FRAME + struct.pack("<Q", tensor.after.size if xor else 4 + 5 * tensor.count)
            yield from _xored(tensor) if xor else _overwriting(tensor)
            yield _END


def between(before: Held, after: Held, most: int) -> Delta | None:
    """The delta from one version to another. None: it would take more than `most` bytes, or a tensor has another name, data type
    or shape."""
    old, new = before.contents(), after.contents()
    if {name: content[:2] for name, content in old.items()} != {name: content[:2] for name, content in new.items()}:
        return None
    tensors = []
    for name, content in new.items():
        tensor = _changed(name, old[name].bytes, content.bytes)
        if tensor is not None:
            tensors.append(tensor)
            if min(_sum(tensors).values()) > most:
                return None
    return Delta(tensors)


def _sum(tensors: list[_Changed]) -> dict[str, float]:
    return {encoding: sum(tensor.sizes[encoding] for tensor in tensors) for encoding in ("overwrite", "xor")}


def _changed(name: str, before: np.ndarray, after: np.ndarray) -> _Changed | None:
    count = xored = 0
    for begin, places in _changes(before, after):
        count += places.size
        lengths = _runs(places, min(_BLOCK, after.size - begin))
        xored += _ZEROS * int(np.count_nonzero(lengths[::2])) + _HEAD * lengths[1::2].size + int(lengths[1::2].sum())
    if count == 0:
        return None
    content = 4 + 5 * count
    overwriting = content + _HEAD * -(-content // _BLOCK) + _FRAME_BYTES
    return _Changed(name, before, after, count,
                    {"overwrite": overwriting if after.size <= 2**32 else math.inf, "xor": xored + _FRAME_BYTES})


def _changes(before: np.ndarray, after: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """For each block of a tensor where it begins, and the places in it of bytes that differ."""
    for begin in range(0, after.size, _BLOCK):
        yield begin, np.flatnonzero(before[begin:begin + _BLOCK] != after[begin:begin + _BLOCK])


def _overwriting(tensor: _Changed) -> Iterator[bytes | memoryview]:
    places = np.concatenate([(begin + places).astype("<u4") for begin, places in _changes(tensor.before, tensor.after)])
    content = np.concatenate((np.array([places.size], "<u4").view(np.uint8), places.view(np.uint8), tensor.after[places]))
    for begin in range(0, content.size, _BLOCK):
        block = content[begin:begin + _BLOCK]
        yield (block.size << 3 | _STORED << 1).to_bytes(_HEAD, "little")
        yield block.data


def _xored(tensor: _Changed) -> Iterator[bytes | memoryview]:
    for begin, places in _changes(tensor.before, tensor.after):
        block = slice(begin, begin + _BLOCK)
        yield _sparse(tensor.before[block] ^ tensor.after[block], places).data


def _runs(places: np.ndarray, size: int) -> np.ndarray:
    """Lengths of the runs of zeros and of bytes to store, by turns, in a block that differs from zero in these places. The
    first run and the last are of zeros, and may have the length 0."""
    if places.size == 0:
        return np.array([size])
    cuts = np.flatnonzero(np.diff(places) > _GAP + 1)
    edges = np.zeros(2 * cuts.size + 4, np.int64)
    edges[1], edges[3:-2:2] = places[0], places[cuts + 1]
    edges[2:-2:2], edges[-2] = places[cuts] + 1, places[-1] + 1
    edges[-1] = size
    return np.diff(edges)


def _sparse(content: np.ndarray, places: np.ndarray) -> np.ndarray:
    """zstd blocks with this content, which differs from zero in these places."""
    lengths = _runs(places, content.size)
    zeros = np.arange(lengths.size) % 2 == 0
    zeros, lengths = zeros[lengths > 0], lengths[lengths > 0]
    fixed, stored = np.where(zeros, _ZEROS, _HEAD), np.where(zeros, 0, lengths)
    out = np.zeros(fixed.sum() + stored.sum(), np.uint8)
    at = np.cumsum(fixed + stored) - fixed - stored
    heads = lengths << 3 | np.where(zeros, _REPEATED, _STORED) << 1
    for byte in range(_HEAD):
        out[at + byte] = heads >> 8 * byte & 255
    by_turns = np.stack((fixed, stored), 1).reshape(-1)
    out[np.repeat(np.arange(by_turns.size) % 2 == 1, by_turns)] = content[np.repeat(~zeros, lengths)]
    return out
