"""A reader of the directories of psd.sglang, written from the description of their format, with all checks that it permits.

With PSD_SGLANG, a checkout of sgl-project/sglang that has python/sglang/srt/weight_sync/local_checkpoint.py, the reader there makes
each pull too, and must get the same bytes. It needs the package zstandard.
"""

import importlib.util
import json
import os
import pathlib
import shutil
import struct
import zlib

import numpy as np

INDEX = "model.safetensors.index.json"
MAGIC = 0xFD2FB528
BLOCK_MOST = 128 << 10
CHECKOUT = os.environ.get("PSD_SGLANG")


def _their_reader():
    if not CHECKOUT:
        return None
    file = pathlib.Path(CHECKOUT) / "python/sglang/srt/weight_sync/local_checkpoint.py"
    spec = importlib.util.spec_from_file_location("local_checkpoint_of_sglang", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


THEIRS = _their_reader()
FROM = f"{CHECKOUT}, and this repository's" if THEIRS else "this repository's"


def tensors_of(file):
    """The bytes of each tensor of a .safetensors file, and the metadata."""
    content = file.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + size])
    metadata = header.pop("__metadata__", {})
    end, tensors = 0, {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        assert entry["data_offsets"][0] == end, "tensors follow each other without gaps"
        end = entry["data_offsets"][1]
        tensors[name] = content[8 + size + entry["data_offsets"][0]:8 + size + end]
    assert 8 + size + end == len(content)
    return tensors, metadata


def frame(content):
    """What a zstd frame (RFC 8878) of stored and repeated blocks holds."""
    magic, descriptor, window, size = struct.unpack_from("<IBBQ", content)
    assert magic == MAGIC
    assert descriptor == 0xC0, "a content size of 8 bytes; neither a single segment nor a checksum or dictionary"
    base = 1 << (10 + (window >> 3))
    block_most = min(BLOCK_MOST, base + base // 8 * (window & 7))
    at, out, last = 14, bytearray(), False
    while not last:
        head = int.from_bytes(content[at:at + 3], "little")
        last, kind, length = bool(head & 1), head >> 1 & 3, head >> 3
        assert length <= block_most
        assert kind in (0, 1), "stored or repeated"
        assert length > 0 or (last and kind == 0)
        at += 3
        taken = length if kind == 0 else 1
        assert at + taken <= len(content)
        out += content[at:at + length] if kind == 0 else content[at:at + 1] * length
        at += taken
    assert at == len(content), "nothing after the last block"
    assert size == len(out)
    return bytes(out)


def read_index(directory):
    return json.loads((directory / INDEX).read_text(encoding="utf-8"))


def encoding(directory):
    """Of a delta; None for a full directory."""
    return read_index(directory)["metadata"].get("delta_encoding")


class Copy:
    """An engine's local copy of a checkpoint."""

    def __init__(self, folder):
        self.folder = folder
        self.version, self.tensors = None, {}

    def pull(self, source, target):
        """Makes the copy that version: from the newest full one, or the version that it is, by all deltas since."""
        start = target
        while start != self.version and encoding(self._directory(source, start)) is not None:
            start -= 1
        if start != self.version:
            self._take(self._directory(source, start), start)
        for version in range(start + 1, target + 1):
            self._apply(self._directory(source, version), version)
        if THEIRS:
            theirs = self.folder / "theirs"
            THEIRS.pull(str(theirs), str(self.folder / "no base"), str(source), target)
            assert tensors_of(theirs / "model.safetensors")[0] == self.tensors

    @staticmethod
    def _directory(source, version):
        directory = source / f"weight_v{version:06d}"
        assert directory.is_dir(), f"{directory} is missing"
        return directory

    def _take(self, directory, version):
        files = self.folder / "files"
        shutil.rmtree(files, ignore_errors=True)
        shutil.copytree(directory, files)
        index = read_index(files)
        self.version, self.tensors = version, tensors_of(files / "model.safetensors")[0]
        assert index["weight_map"] == dict.fromkeys(self.tensors, "model.safetensors")
        assert index["metadata"]["total_size"] == sum(map(len, self.tensors.values()))

    def _apply(self, directory, version):
        index = read_index(directory)
        metadata, files = index["metadata"], set(index["weight_map"].values())
        assert (int(metadata["version"]), int(metadata["base_version"])) == (version, self.version)
        assert (metadata["compression_format"], metadata["checksum_format"]) == ("zstd", "adler32")
        assert {path.name for path in directory.iterdir()} == {INDEX, *files}
        assert "model.safetensors" not in files, "a directory without its index must not look like a checkpoint"
        for file in files:
            frames, sums = tensors_of(directory / file)
            assert frames.keys() == sums.keys() == {name for name, place in index["weight_map"].items() if place == file}
            for name, content in frames.items():
                values = np.frombuffer(self.tensors[name], np.uint8).copy()
                {"overwrite": self._overwrite, "xor": self._xor}[metadata["delta_encoding"]](values, frame(content))
                assert f"{zlib.adler32(values):08x}" == sums[name], name
                assert values.tobytes() != self.tensors[name], f"{name} has not changed"
                self.tensors[name] = values.tobytes()
        self.version = version

    @staticmethod
    def _overwrite(values, delta):
        (count,) = struct.unpack_from("<I", delta)
        assert len(delta) == 4 + 5 * count
        places = np.frombuffer(delta, "<u4", count, 4)
        assert np.all(np.diff(places.astype(np.int64)) > 0)
        values[places] = np.frombuffer(delta, np.uint8, count, 4 + 4 * count)

    @staticmethod
    def _xor(values, delta):
        values ^= np.frombuffer(delta, np.uint8)
