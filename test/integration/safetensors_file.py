"""Reads safetensors files."""

import array
import json
import struct

_TYPES = {"F32": "f", "U64": "Q"}


def safetensors(path):
    """{name: (shape, values)} of a file of float32 and uint64 tensors."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = entry["shape"], array.array(_TYPES[entry["dtype"]], data[8 + size + begin:8 + size + end])
    return tensors
