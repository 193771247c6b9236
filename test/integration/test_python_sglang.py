"""psd.sglang: directories of published versions in the layout that /pull_weights of SGLang reads."""

import json
import shutil
import struct
import sys
import unittest.mock

import numpy as np
import processes
from test_python_follower import WIDE, FollowerTest, step

import psd
import psd.sglang


def pull(source, target, version):
    """What /pull_weights does with a full version: its target becomes a copy of the files in the version's directory."""
    directory = source / f"weight_v{version:06d}"
    index = json.loads((directory / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert "delta_encoding" not in index["metadata"]
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for file in directory.iterdir():
        assert file.is_file()
        shutil.copy2(file, target / file.name)
    return index


def tensors_of(folder, index):
    """The tensors of a checkpoint in a folder, by its index."""
    found = {}
    for name in set(index["weight_map"].values()):
        content = (folder / name).read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8:8 + size])
        header.pop("__metadata__")
        for tensor, entry in header.items():
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            found[tensor] = np.frombuffer(content[begin:end], {"F32": np.float32}[entry["dtype"]]).reshape(entry["shape"])
    assert set(found) == set(index["weight_map"])
    return found


class Directories(FollowerTest):
    def setUp(self):
        self.base = self.folder / "base"
        self.base.mkdir()
        for name in ("config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json"):
            (self.base / name).write_text(f"the base's {name}", encoding="utf-8")
        self.into = self.folder / "weights"

    def names(self):
        return sorted(path.name for path in self.into.iterdir() if path.name != ".psd.lock")

    def held(self, daemon, number=None):
        follower = self.follower(daemon)
        follower.wait(timeout=processes.WAIT_S) if number is None else follower.fetch(number, processes.WAIT_S)
        return follower

    def test_a_program_follows(self):
        daemon = self.publishing(folder=None)
        trainer = self.joined(daemon, WIDE)
        writer = processes.Process(self.folder, "writer", [sys.executable, "-m", "psd.sglang", "--server", daemon.address,
                                                           "--into", self.into, "--files-from", self.base, "--keep", "2"])
        self.processes.append(writer)
        for number in range(1, 5):
            trainer.push(step(WIDE, 1))
            self.publish(daemon)
            target = self.into / f"weight_v{number:06d}"
            processes.until("it is written", lambda: f"version {number}: {target}\n" in writer.out)
            index = pull(self.into, self.folder / "local", number)
            expected = self.pulled(trainer, WIDE)
            self.assert_same(tensors_of(self.folder / "local", index), expected)
            self.assertEqual(index["metadata"]["total_size"], sum(array.nbytes for array in expected.values()))
            self.assertEqual(sorted(path.name for path in (self.folder / "local").iterdir()),
                             ["config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"])
            self.assertEqual((self.folder / "local" / "config.json").read_text(encoding="utf-8"), "the base's config.json")
        processes.until("two are left", lambda: self.names() == ["weight_v000003", "weight_v000004"])
        writer.kill()
        once = processes.Process(self.folder, "once", [sys.executable, "-m", "psd.sglang", "--server", daemon.address,
                                                       "--into", self.into, "--once"])
        self.processes.append(once)
        self.assertEqual(once.wait(), 0, once.err)
        self.assertTrue((self.into / "weight_v000004" / "tokenizer.json").exists(), "the directory that exists stays")

    def test_what_a_kill_leaves(self):
        """A directory that was not complete is not there, and the next write removes what is left of it."""
        daemon = self.publishing(folder=None)
        self.joined(daemon, WIDE)
        self.publish(daemon)
        follower = self.held(daemon)
        with unittest.mock.patch("psd.sglang._sync", side_effect=MemoryError), self.assertRaises(MemoryError):
            psd.sglang.write_directory(follower, self.into)
        self.assertEqual(self.names(), [".weight_v000001.partial"])
        (self.into / ".weight_v000007.removed").mkdir()
        self.assertEqual(psd.sglang.write_directory(follower, self.into), self.into / "weight_v000001")
        self.assertEqual(self.names(), ["weight_v000001"])

    def test_another_history(self):
        daemons = [self.publishing(folder=None) for _ in range(2)]
        for daemon in daemons:
            self.joined(daemon, WIDE)
            self.publish(daemon)
        psd.sglang.write_directory(self.held(daemons[0]), self.into)
        with self.assertRaisesRegex(psd.ModelMismatch, "weight_v000001' is of history [0-9a-f]{16}, but the daemon's versions are of"):
            psd.sglang.write_directory(self.held(daemons[1]), self.into)

    def test_refusals(self):
        daemon = self.publishing(folder=None)
        self.joined(daemon, WIDE)
        self.publish(daemon)
        with self.assertRaisesRegex(psd.InvalidArgument, r"write_directory\(\) before the first version"):
            psd.sglang.write_directory(self.follower(daemon), self.into)
        follower = self.held(daemon, 1)
        with self.assertRaisesRegex(psd.InvalidArgument, "keep is 0"):
            psd.sglang.write_directory(follower, self.into, keep=0)
        with self.assertRaisesRegex(psd.InputOutputError, "cannot write version 1 into '.*weights': .*missing"):
            psd.sglang.write_directory(follower, self.into, files_from=self.folder / "missing")
        (self.into / "weight_v000005").mkdir()
        with self.assertRaisesRegex(psd.InvalidArgument, "weight_v000005' was not written by psd"):
            psd.sglang.write_directory(follower, self.into)
        with psd.sglang._written_by_one(self.into), self.assertRaisesRegex(psd.InvalidArgument, "another process writes into"):
            psd.sglang.write_directory(follower, self.into)


if __name__ == "__main__":
    processes.main()
