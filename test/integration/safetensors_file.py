"""Reads files of float32 tensors."""

import array
import json
import struct


def safetensors(path):
    """{name: (shape, values)} of a file of float32 tensors."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = entry["shape"], array.array("f", data[8 + size + begin:8 + size + end])
    return tensors
