"""psd.sglang: directories of published versions in the layout that /pull_weights of SGLang reads, full ones and deltas."""

import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import types
import unittest.mock

import numpy as np
import processes
import sglang_reader
from test_python_follower import WIDE, step
from test_weight_store import StoreTest

import psd
import psd._sglang_deltas
import psd._versions
import psd.sglang

COMMAND = [sys.executable, "-m", "psd.sglang"]
# The command, which kills itself before one of its calls that change a folder or wait for the disk.
KILLED = """
import os, signal, sys, psd.sglang
left = int(sys.argv.pop(1))
def counted(call):
    def made(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return made
for name in ("fsync", "mkdir", "rename", "unlink", "rmdir"):
    setattr(os, name, counted(getattr(os, name)))
sys.exit(psd.sglang._main())
"""
# Quiet NaNs, signalling NaNs, and zeros of both signs, as bits.
SPECIAL = {"BF16": (np.uint16, (0x7FC0, 0x7F81, 0xFFC1, 0xFFFF, 0, 0x8000)), "F32": (np.uint32, (0x7FC00000, 0x7F800001, 0xFFC12345, 0, 0x80000000)),
           "F8_E4M3": (np.uint8, (0x7F, 0xFF, 0, 0x80)), "F8_E5M2": (np.uint8, (0x7D, 0x7E, 0x7F, 0xFD, 0, 0x80))}
ELEMENTS = 150_001  # blocks of the frames end within values, and tensors at odd places


def random_bits(random, dtype):
    bits, special = SPECIAL[dtype]
    values = random.integers(0, np.iinfo(bits).max, ELEMENTS, bits, endpoint=True)
    values[:len(special)] = special
    return values


def in_memory(number, tensors):
    """A version in memory with these bytes."""
    ends = np.cumsum([0, *(array.size for array in tensors.values())])
    places = [(name, "U8", [array.size], begin, begin + array.size) for (name, array), begin in zip(tensors.items(), ends)]
    return psd._versions.Held(types.SimpleNamespace(number=number), places, np.concatenate(list(tensors.values())))


class Directories(StoreTest):
    def setUp(self):
        self.base = self.folder / "base"
        self.base.mkdir()
        for name in ("config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json"):
            (self.base / name).write_text(f"the base's {name}", encoding="utf-8")
        self.into = self.folder / "weights"
        self.random = np.random.default_rng(5)

    def names(self):
        return sorted(path.name for path in self.into.iterdir() if path.name != ".psd.lock")

    def numbers(self):
        self.assertTrue(all(name.startswith("weight_v") for name in self.names()), self.names())
        return [int(name.removeprefix("weight_v")) for name in self.names()]

    def encoding(self, number):
        return sglang_reader.encoding(self.into / f"weight_v{number:06d}")

    def copy(self):
        return sglang_reader.Copy(pathlib.Path(tempfile.mkdtemp(prefix="copy-", dir=self.folder)))

    def held(self, daemon, number=None):
        follower = self.follower(daemon)
        follower.wait(timeout=processes.WAIT_S) if number is None else follower.fetch(number, processes.WAIT_S)
        return follower

    def assert_pulls(self, copy, number, expected):
        """That an engine's copy gets exactly these bytes."""
        copy.pull(self.into, number)
        self.assertEqual(copy.tensors, {name: array.tobytes() for name, array in expected.items()})

    def weights(self, dtypes=tuple(SPECIAL)):
        return {dtype: random_bits(self.random, dtype) for dtype in dtypes}

    def changed(self, tensors, share=0.003):
        """Tensors of which about that share of elements, at random places, has other bits."""
        tensors = {name: array.copy() for name, array in tensors.items()}
        for array in tensors.values():
            flat, places = array.reshape(-1), self.random.integers(0, array.size, int(share * array.size))
            flat[places] ^= self.random.integers(1, 8, places.size).astype(array.dtype)
        return tensors

    def put(self, publisher, number, tensors):
        """Publishes the version `number` of a store that has those before."""
        parts = {name: psd.Part(array, dtype=name.split(".")[0]) for name, array in tensors.items()}
        self.assertEqual(publisher.publish(number, parts).number, number)

    def run_command(self, daemon, *arguments, program=COMMAND):
        return subprocess.run([*program, "--server", daemon.address, "--into", self.into, *arguments], capture_output=True, text=True,
                              timeout=processes.WAIT_S, check=False)

    def written(self, daemon, *arguments):
        """What the command says that writes what there is."""
        done = self.run_command(daemon, "--once", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.splitlines()


class Full(Directories):
    def test_a_program_follows(self):
        daemon = self.publishing(folder=None)
        trainer = self.joined(daemon, WIDE)
        writer = processes.Process(self.folder, "writer", [*COMMAND, "--server", daemon.address, "--into", self.into,
                                                           "--files-from", self.base, "--keep", "2"])
        self.processes.append(writer)
        copy = self.copy()
        for number in range(1, 5):
            trainer.push(step(WIDE, 1))
            self.publish(daemon)
            target = self.into / f"weight_v{number:06d}"
            processes.until("it is written", lambda: f"version {number}: {target}\n" in writer.out)
            self.assert_pulls(copy, number, self.pulled(trainer, WIDE))
            files = copy.folder / "files"
            self.assertEqual(sorted(path.name for path in files.iterdir()),
                             ["config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"])
            self.assertEqual((files / "config.json").read_text(encoding="utf-8"), "the base's config.json")
        processes.until("two are left", lambda: self.names() == ["weight_v000003", "weight_v000004"])
        writer.kill()
        self.written(daemon)
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
        with self.assertRaisesRegex(psd.InvalidArgument, "writing a directory before the first version"):
            psd.sglang.write_directory(self.follower(daemon), self.into)
        follower = self.held(daemon, 1)
        with self.assertRaisesRegex(psd.InvalidArgument, "keep is 0"):
            psd.sglang.write_directory(follower, self.into, keep=0)
        with self.assertRaisesRegex(psd.InvalidArgument, "full_every is 0"):
            psd.sglang.DirectoryWriter(self.into, full_every=0)
        with self.assertRaisesRegex(psd.InputOutputError, "cannot write version 1 into '.*weights': .*missing"):
            psd.sglang.write_directory(follower, self.into, files_from=self.folder / "missing")
        shared = psd.SharedVersions(self.folder / "shared")
        self.addCleanup(shared.close)
        shared._held = follower._held
        with self.assertRaisesRegex(psd.InvalidArgument, r"deltas need a psd\.Follower"):
            psd.sglang.DirectoryWriter(self.into, full_every=2).write(shared)
        (self.into / "weight_v000005").mkdir()
        with self.assertRaisesRegex(psd.InvalidArgument, "weight_v000005' was not written by psd"):
            psd.sglang.write_directory(follower, self.into)
        with psd.sglang._written_by_one(self.into), self.assertRaisesRegex(psd.InvalidArgument, "another process writes into"):
            psd.sglang.write_directory(follower, self.into)


class Deltas(Directories):
    def test_blocks(self):
        """Sizes and places around the ends of blocks, in both encodings."""
        block = 128 << 10
        for size in (1, 8, block - 1, block, block + 1, 3 * block + 7):
            before = {"a": self.random.integers(0, 256, size, np.uint8), "same": np.zeros(5, np.uint8)}
            edges = [place for place in (0, 1, 8, 9, 17, block - 2, block - 1, block, 2 * block, size - 1) if place < size]
            for share in (0, 0.001, 0.1, 0.5, 1):
                after = {name: array.copy() for name, array in before.items()}
                after["a"][edges if share == 0 else self.random.random(size) < share] ^= 0x81
                delta = psd._sglang_deltas.between(in_memory(1, before), in_memory(2, after), sys.maxsize)
                self.assertEqual(delta.names, ["a"] * (before["a"].tobytes() != after["a"].tobytes()))
                for delta.encoding, change in (("overwrite", sglang_reader.Copy._overwrite), ("xor", sglang_reader.Copy._xor)):
                    with self.subTest(size=size, share=share, encoding=delta.encoding):
                        (self.folder / "delta").write_bytes(b"".join(map(bytes, delta.file())))
                        for name, content in sglang_reader.tensors_of(self.folder / "delta")[0].items():
                            values = before[name].copy()
                            change(values, sglang_reader.frame(content))
                            self.assertEqual(values.tobytes(), after[name].tobytes())

    def test_bits(self):
        """Each delta makes the bytes of its version, for an engine that pulls all versions, for one that pulls some, and for
        one that begins with it."""
        daemon = self.store(folder=None)
        publisher, follower = self.publisher(daemon), self.follower(daemon)
        writer = psd.sglang.DirectoryWriter(self.into, self.base, keep=100, full_every=100)
        always, sometimes = self.copy(), self.copy()
        tensors = self.weights()

        def write(number, encoding):
            self.put(publisher, number, tensors)
            follower.fetch(number, processes.WAIT_S)
            writer.write(follower)
            self.assertEqual(self.encoding(number), encoding)
            for copy in (always, self.copy(), *[sometimes] * (number % 3 == 0)):
                self.assert_pulls(copy, number, tensors)

        write(1, None)
        tensors = self.changed(tensors)
        for dtype, (_, special) in SPECIAL.items():  # to other payloads, and zeros to the other sign
            tensors[dtype][:len(special)] = np.roll(tensors[dtype][:len(special)], 1)
        write(2, "overwrite")
        write(3, "overwrite")  # nothing has changed
        self.assertEqual(sglang_reader.read_index(self.into / "weight_v000003")["weight_map"], {})
        for dtype in ("F32", "F8_E5M2"):
            tensors = {**tensors, dtype: self.changed({dtype: tensors[dtype]}, 0.001)[dtype]}
        write(4, "overwrite")
        self.assertEqual(set(sglang_reader.read_index(self.into / "weight_v000004")["weight_map"]), {"F32", "F8_E5M2"})
        tensors = self.changed(tensors) | {"F8_E4M3": random_bits(self.random, "F8_E4M3")}  # this one entirely
        size = sum(array.nbytes for array in tensors.values())
        write(5, "xor")
        self.assertLess((self.into / "weight_v000005" / "delta.safetensors").stat().st_size, tensors["F8_E4M3"].nbytes + 0.1 * size)
        tensors = self.weights()
        write(6, None)  # all has changed
        tensors = self.changed(tensors)
        write(7, "overwrite")
        tensors = tensors | {"F32": tensors["F32"].reshape(-1, 1)}
        write(8, None)  # another shape
        tensors = tensors | {"BF16.more": np.zeros(3, np.uint16)}
        write(9, None)  # another tensor
        self.put(publisher, 10, tensors)
        tensors = self.changed(tensors)
        write(11, None)  # the version before was not written
        self.assertEqual(self.encoding(9), None)

    def test_pruning(self):
        daemon = self.store(folder=None)
        publisher, follower, copy = self.publisher(daemon), self.follower(daemon), self.copy()
        writer = psd.sglang.DirectoryWriter(self.into, keep=2, full_every=3)
        tensors = self.weights(["BF16"])
        left = [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [4, 5], [4, 5, 6], [4, 5, 6, 7], [7, 8]]
        for number, expected in enumerate(left, 1):
            tensors = self.changed(tensors)
            self.put(publisher, number, tensors)
            follower.wait(timeout=processes.WAIT_S)
            writer.write(follower)
            self.assertEqual(self.numbers(), expected)
            self.assertEqual([each for each in expected if self.encoding(each) is None], [each for each in (1, 4, 7) if each in expected])
            self.assert_pulls(copy, number, tensors)
            self.assert_pulls(self.copy(), number, tensors)
        shutil.rmtree(self.into / "weight_v000007")
        self.put(publisher, 9, self.changed(tensors))
        follower.wait(timeout=processes.WAIT_S)
        writer.write(follower)
        self.assertIsNone(self.encoding(9), "what version 8 is a delta of is gone")

    def test_the_command(self):
        """It writes each version that exists, also after a restart, and continues with a full one if it has missed some."""
        daemon = self.store(publish__keep=3)
        publisher, tensors = self.publisher(daemon), self.weights(["BF16"])

        def put(*numbers):
            for number in numbers:
                self.put(publisher, number, tensors[number])

        tensors = {1: tensors}
        for number in range(2, 10):
            tensors[number] = self.changed(tensors[number - 1])
        options = ["--full-every", "4", "--keep", "10", "--files-from", self.base]
        put(1)
        self.assertEqual(self.written(daemon, *options), [f"version 1: {self.into}/weight_v000001"])
        put(2, 3)
        self.assertEqual(self.written(daemon, *options), [f"version 1: {self.into}/weight_v000001"] +
                         [f"version {number}: {self.into}/weight_v{number:06d}, from version {number - 1}" for number in (2, 3)])
        put(4, 5, 6)  # version 3 is no longer at the daemon
        self.assertEqual(self.written(daemon, *options), [f"version 6: {self.into}/weight_v000006"])
        writer = processes.Process(self.folder, "writer", [*COMMAND, "--server", daemon.address, "--into", self.into, *options])
        self.processes.append(writer)
        for number in (7, 8):
            put(number)
            processes.until("it is written", lambda: f"version {number}: {self.into}/weight_v{number:06d}, from version {number - 1}\n" in writer.out)
        for number in self.numbers():
            self.assert_pulls(self.copy(), number, tensors[number])
        self.assertEqual(self.numbers(), [1, 2, 3, 6, 7, 8])

    def test_another_history(self):
        """The command refuses the folder at once, also where its newest number does not exist yet, and ends if the daemon loses
        its versions."""
        address = self.unix_address()
        daemon, other = self.store(folder=None, listen=address), self.store(folder=None)
        tensors = self.weights(["F32"])
        publisher = self.publisher(daemon)
        for number in (1, 2):
            self.put(publisher, number, tensors)
        into = self.folder / "of the first"
        self.written(daemon, "--full-every", "5", "--into", into)
        writer = processes.Process(self.folder, "writer", [*COMMAND, "--server", address, "--into", self.into, "--full-every", "5"])
        self.processes.append(writer)
        processes.until("it is written", lambda: "version 2:" in writer.out)
        with self.publisher(other) as another:
            for number in (1, 2):  # the first one lacks the number of the newest directory
                self.put(another, number, tensors)
                done = self.run_command(other, "--once", "--full-every", "5", "--into", into)
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr, "^error: '.*weight_v000002' is of history [0-9a-f]{16}, but the daemon's versions are of")
        publisher.close()
        daemon.kill()
        daemon = self.store(folder=None, listen=address)
        self.put(self.publisher(daemon), 1, tensors)
        self.assertEqual(writer.wait(), 1)
        self.assertRegex(writer.err, "(?m)^error: unix://.*: the daemon has lost its versions")

    def test_kills(self):
        """A command that is killed at any moment leaves versions that each engine can pull, and one that starts again continues."""
        daemon = self.store(publish__keep=10)
        publisher, tensors = self.publisher(daemon), {1: self.weights(["BF16", "F8_E4M3"])}
        for number in range(2, 7):
            tensors[number] = self.changed(tensors[number - 1])
        options = ["--full-every", "3", "--keep", "1", "--once"]
        self.put(publisher, 1, tensors[1])
        self.assertEqual(self.run_command(daemon, *options).returncode, 0)
        for number in range(2, 7):
            self.put(publisher, number, tensors[number])
        seen = set()
        for calls in range(100):
            done = self.run_command(daemon, *options, program=[sys.executable, "-c", KILLED, str(calls)])
            visible = [int(path.name.removeprefix("weight_v")) for path in self.into.glob("weight_v*")]
            seen.add(tuple(sorted(visible)))
            for number in visible:
                self.assert_pulls(self.copy(), number, tensors[number])
            if done.returncode == 0:
                break
            self.assertEqual((done.returncode, done.stderr), (-signal.SIGKILL, ""))
        self.assertEqual(done.returncode, 0)
        self.assertEqual(self.numbers(), [4, 5, 6])
        self.assertGreater(len(seen), 5, seen)


print(f"reader: {sglang_reader.FROM}")
if __name__ == "__main__":
    processes.main()
