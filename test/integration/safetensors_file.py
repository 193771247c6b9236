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


def torch_tensors(path):
    """Equivalent to safetensors.torch.load_file(); each tensor is aligned, as some readers require."""
    import torch
    dtypes = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64, "BOOL": torch.bool}
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        dtype = dtypes[entry["dtype"]]
        assert (begin + first) % dtype.itemsize == 0, f"{name} is not aligned"
        tensors[name] = torch.frombuffer(bytearray(data[begin + first:begin + end]), dtype=dtype).reshape(entry["shape"])
    return tensors
