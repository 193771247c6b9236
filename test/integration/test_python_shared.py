"""psd follow --shared and psd.SharedVersions: versions in shared memory, whole or not at all, whatever dies meanwhile."""

import contextlib
import gc
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import threading

import numpy as np
import processes
from processes import PSD, WAIT_S, until
from test_python_follower import WIDE, FollowerTest, step

import psd

READER = pathlib.Path(__file__).with_name("shared_reader.py")


class SharedTest(FollowerTest):
    def setUp(self):
        self.file = pathlib.Path(f"/dev/shm/psd-test-{os.getpid()}-{random.randrange(1 << 48):012x}")
        self.addCleanup(self.file.unlink, missing_ok=True)

    def follow(self, daemon, *arguments, file=None):
        return self.start_psd("follow", "--server", daemon.address, "--shared", file or self.file, *arguments)

    def versions(self, file=None):
        versions = psd.SharedVersions(file or self.file)
        self.addCleanup(versions.close)
        return versions

    def published(self, trainer, daemon, value=1):
        trainer.push(step(WIDE, value))
        self.publish(daemon)

    def follower_has(self, follower, number):
        until(f"the follower has version {number}", lambda: f"\nversion {number}: " in "\n" + follower.out)

    def inspected(self):
        done = subprocess.run([PSD, "inspect", "--json", self.file], capture_output=True, text=True, timeout=WAIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)


class Reading(SharedTest):
    def test_each_version(self):
        daemon = self.publishing(folder=None)
        trainer, follower, versions = self.joined(daemon, WIDE), self.follow(daemon), self.versions()
        for number in range(1, 6):
            self.published(trainer, daemon, number)
            self.assertEqual(versions.wait(timeout=WAIT_S), number)
            self.assert_same(versions.tensors(), self.pulled(trainer, WIDE))
            self.assertEqual((versions.version, versions.info.number, versions.info.step), (number, number, number))
        direct = self.follower(daemon)
        direct.wait()
        for field in ("number", "history", "step", "created", "moment", "bytes"):
            self.assertEqual(getattr(versions.info, field), getattr(direct.info, field), field)
        self.assertEqual(versions.wait(at_least=3), 5)
        with self.assertRaisesRegex(psd.DeadlineExceeded, "after 0.05 seconds '.*' has no version of at least 6"):
            versions.wait(timeout=0.05)
        self.assertRegex(repr(versions), r"<psd.SharedVersions of '/dev/shm/psd-test-.*', version 5>")
        found = self.inspected()
        self.assertEqual((found["kind"], found["version"], found["step"]), ("shared_versions", 5, 5))
        self.assertEqual(follower.err, "")

    def test_arrays_are_views_that_cannot_be_written(self):
        daemon = self.publishing(folder=None)
        trainer, versions = self.joined(daemon, WIDE), self.versions()
        self.follow(daemon)
        self.published(trainer, daemon, 3)
        versions.wait(timeout=WAIT_S)
        tensors = versions.tensors()
        self.assertTrue(all(not tensor.flags.writeable and not tensor.flags.owndata for tensor in tensors.values()))
        self.assertTrue(np.shares_memory(tensors["w"], versions.tensors()["w"]))

    def test_a_reader_that_starts_before_the_file_exists(self):
        versions = self.versions()
        with self.assertRaisesRegex(psd.DeadlineExceeded, "there is no file '/dev/shm/psd-test-.*', which psd follow --shared makes"):
            versions.wait(timeout=0)
        with self.assertRaisesRegex(psd.InvalidArgument, "call wait"):
            versions.tensors()
        ended = self.in_background(versions.wait, timeout=WAIT_S)
        daemon = self.publishing(folder=None)
        trainer = self.joined(daemon, WIDE)
        self.follow(daemon)
        self.published(trainer, daemon)
        self.assertEqual(ended(), 1)

    def test_close_ends_a_wait(self):
        versions = self.versions()
        ended = self.in_background(versions.wait)
        until("it waits", versions._waiting.locked)
        versions.close()
        self.assertIsInstance(ended(), psd.Interrupted)

    def test_other_files(self):
        self.file.write_text("x" * 1000, encoding="utf-8")
        with self.assertRaisesRegex(psd.InputOutputError, "is not a file of psd follow --shared: it begins differently"):
            self.versions().wait()
        daemon = self.publishing(folder=None)
        self.assert_fails(self.follow(daemon), "is not a file of psd follow --shared", str(self.file))
        self.assertEqual(self.file.read_text(encoding="utf-8"), "x" * 1000)
        self.assert_fails(self.follow(daemon, file=self.folder / "none" / "file"), "No such file")
        self.assert_fails(self.follow(daemon, "--into", self.folder / "both"), "either --into FOLDER or --shared FILE")
        with self.assertRaisesRegex(psd.InputOutputError, "is not a file of psd follow"):
            self.versions("/dev/null").wait()

    def test_another_model_of_another_size(self):
        address = self.unix_address()
        daemon = self.publishing(folder=None, listen=(address,))
        trainer, versions, follower = self.joined(daemon, WIDE), self.versions(), self.follow(daemon)
        self.published(trainer, daemon, 2)
        self.assertEqual(versions.wait(timeout=WAIT_S), 1)
        held = versions.tensors()
        inode = self.file.stat().st_ino
        daemon.kill()
        small = psd.Model("small", {"v": (5,)})
        daemon = self.publishing(folder=None, listen=(address,))
        other = self.joined(daemon, small)
        other.push(step(small, 7))
        self.publish(daemon)
        with self.assertRaisesRegex(psd.ModelMismatch, "the daemon has lost its versions"):
            versions.wait(timeout=WAIT_S)
        self.assertEqual(versions.version, 1)
        self.assertEqual(versions.wait(timeout=WAIT_S), 1)
        np.testing.assert_array_equal(versions.tensors()["v"], np.full(5, 7, np.float32))
        self.assertEqual({float(value) for value in np.unique(held["w"])}, {2.0})  # the old file stays with its arrays
        self.assertNotEqual(self.file.stat().st_ino, inode)
        self.assertIn("has lost the versions of history", follower.err)


class Holding(SharedTest):
    def test_a_version_stays_while_an_array_of_it_exists(self):
        daemon = self.publishing(folder=None)
        trainer, versions, follower = self.joined(daemon, WIDE), self.versions(), self.follow(daemon)
        self.published(trainer, daemon)
        versions.wait(timeout=WAIT_S)
        first = versions.tensors()["w"]
        self.published(trainer, daemon)
        self.assertEqual(versions.wait(timeout=WAIT_S), 2)
        self.published(trainer, daemon)
        until("the follower waits", lambda: "a reader still holds version 1" in follower.err)
        with self.assertRaises(psd.DeadlineExceeded):
            versions.wait(timeout=0.05)
        self.assertEqual((first.min(), first.max()), (1, 1))
        self.published(trainer, daemon)
        self.assertEqual(daemon.status()["publish"]["leases"], [])
        del first
        gc.collect()
        self.assertEqual(versions.wait(timeout=WAIT_S), 4)  # the newest
        self.assertEqual(versions.tensors()["w"].max(), 4)
        self.assertEqual(follower.err.count("still holds"), 1)

    def test_close_releases(self):
        daemon = self.publishing(folder=None)
        trainer, follower = self.joined(daemon, WIDE), self.follow(daemon)
        with self.versions() as holder:
            self.published(trainer, daemon)
            holder.wait(timeout=WAIT_S)
            for number in (2, 3):
                self.published(trainer, daemon)
                if number == 2:
                    self.follower_has(follower, 2)
            until("the follower waits", lambda: "a reader still holds version 1" in follower.err)
        self.follower_has(follower, 3)

    def test_a_reader_that_dies_or_stops(self):
        daemon = self.publishing(folder=None)
        trainer, follower = self.joined(daemon, WIDE), self.follow(daemon)
        self.published(trainer, daemon)
        reader = self.start_program(sys.executable, READER, self.file, 1)
        until("it reads", lambda: "1\n" in reader.out)
        reader.signal(signal.SIGSTOP)
        self.published(trainer, daemon)
        self.follower_has(follower, 2)
        self.published(trainer, daemon)
        until("the follower waits", lambda: "a reader still holds version 1" in follower.err)
        versions = self.versions()
        self.assertEqual(versions.wait(timeout=WAIT_S), 2)
        versions.close()
        reader.kill()
        self.follower_has(follower, 3)

    def test_a_forked_child_holds(self):
        daemon = self.publishing(folder=None)
        trainer, versions, follower = self.joined(daemon, WIDE), self.versions(), self.follow(daemon)
        self.published(trainer, daemon)
        versions.wait(timeout=WAIT_S)
        tensors = versions.tensors()
        come, go = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(come, 1)  # until the parent says so
            os._exit(0 if tensors["w"].max() == 1 else 1)
        os.close(come)
        try:
            del tensors
            versions.close()
            for number in (2, 3):
                self.published(trainer, daemon)
                if number == 2:
                    self.follower_has(follower, 2)
            until("the follower waits", lambda: "a reader still holds version 1" in follower.err)
        finally:
            os.close(go)
            status = os.waitpid(child, 0)[1]
        self.assertEqual(status, 0)
        self.follower_has(follower, 3)


class Faults(SharedTest):
    def test_two_followers_of_one_file(self):
        daemon = self.publishing(folder=None)
        follower = self.follow(daemon)
        until("it has made the file", self.file.exists)
        self.assert_fails(self.follow(daemon), "is in use by another psd follow")
        self.assertTrue(follower.runs())

    def test_a_full_file_system(self):
        place = self.folder / "small"
        place.mkdir()
        within = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"', place]
        if subprocess.run([*within, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("this system does not allow to mount in a user namespace")
        daemon = self.publishing(folder=None)
        self.published(self.joined(daemon, WIDE), daemon)
        follow = [PSD, "follow", "--server", daemon.address, "--shared", place / "file"]
        self.assert_fails(self.start_program(*within, *follow, "--once"), "cannot allocate 5.4 MiB for two versions: No space left on device")
        waits = self.start_program(*within, *follow)
        until("it says so", lambda: "No space left on device; retrying" in waits.err)
        self.assertTrue(waits.runs())

    def test_a_file_that_may_not_be_written(self):
        daemon = self.publishing(folder=None)
        self.follow(daemon)
        until("it has made the file", self.file.exists)
        os.chmod(self.file, 0o444)
        if os.access(self.file, os.W_OK):
            self.skipTest("root may write all files")
        self.assert_fails(self.follow(daemon), "Permission denied", str(self.file))

    def test_readers_see_whole_versions_whatever_dies(self):
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        chance, address = random.Random(seed), self.unix_address()

        def launch():
            return self.publishing(listen=(address,), shards=1, publish={"every_updates": 1, "keep": 50})

        daemon = launch()
        trainer, stopped = self.joined(daemon, WIDE, on_event=lambda *_: None), threading.Event()

        def train():
            with contextlib.suppress(psd.Error):  # the test has ended
                while not stopped.is_set():
                    trainer.push(step(WIDE, 1))

        training = threading.Thread(target=train, daemon=True)
        training.start()
        self.addCleanup(stopped.set)
        follower = self.follow(daemon)
        readers = [self.start_program(sys.executable, READER, self.file, seed + i) for i in range(2)]

        def newest():
            self.assertTrue(all(reader.runs() for reader in readers), [reader.err for reader in readers])
            return min(int(reader.out.rpartition("\n")[0].rpartition("\n")[2] or 0) for reader in readers)

        for _ in range(200 if processes.LONG else 20):
            wanted = newest() + chance.randrange(1, 6)
            until(f"the readers have version {wanted}", lambda least=wanted: newest() >= least)
            whom = chance.choice(("daemon", "follower", "follower", "both"))
            if whom != "follower":
                daemon.kill()
            if whom != "daemon":
                follower.kill()
                self.assertEqual(self.inspected()["kind"], "shared_versions")
                with psd.SharedVersions(self.file) as versions:
                    self.assertGreaterEqual(versions.wait(timeout=WAIT_S), wanted)
            if whom != "follower":
                daemon = launch()
            if whom != "daemon":
                follower = self.follow(daemon)
        last = newest()
        until("they continue", lambda: newest() > last + 1)
        self.assertTrue(all(reader.err == "" for reader in readers))
        stopped.set()
        training.join(WAIT_S)
        left = [path.name for path in self.file.parent.iterdir() if path.name.startswith(self.file.name) and path != self.file]
        self.assertEqual(left, [])


class Mapping(SharedTest):
    def map_of(self, **tensors):
        return self.write("-".join(tensors) + ".json", json.dumps({"tensors": tensors}))

    def test_tensors_of_other_names(self):
        daemon = self.publishing(folder=None)
        trainer, versions = self.joined(daemon, WIDE), self.versions()
        names = self.map_of(fused={"concat": ["matrix", {"from": "matrix", "dim": 1, "begin": 1, "end": 3}], "dim": 1},
                            renamed={"from": "w", "begin": 1000, "end": 3000})
        self.follow(daemon, "--map", names)
        trainer.push(step(WIDE, 1))
        gradient = WIDE.zeros(float32=True)
        gradient[:] = np.arange(gradient.size)
        trainer.push(gradient)
        self.publish(daemon)
        versions.wait(timeout=WAIT_S)
        values = self.pulled(trainer, WIDE)
        matrix = values["matrix"]
        expected = {"fused": np.concatenate([matrix, matrix[:, 1:3]], 1), "renamed": values["w"][1000:3000], "scalar": values["scalar"]}
        self.assert_same(versions.tensors(), expected)
        self.assertEqual((versions.info.number, versions.info.step), (1, 2))
        out = self.folder / "out.safetensors"
        self.assert_ends(self.start_psd("export", "--server", daemon.address, "--published", 1, "--map", names, out))
        self.assertEqual(out.read_bytes(), self.active_image())

    def active_image(self):
        """As docs/reference/protocol.md has the layout."""
        data = self.file.read_bytes()
        words = struct.unpack_from("<32Q", data)
        slot = words[8] % 2
        return data[words[3 + slot]:][:words[16 + 8 * slot + 3]]

    def test_a_follower_with_another_map_replaces_the_file(self):
        daemon = self.publishing(folder=None)
        self.published(self.joined(daemon, WIDE), daemon)
        for name, said in (("w", ""), ("a", "was written with no map; it will be replaced"),
                           ("b", "was written with another map; it will be replaced"), ("w", "was written with another map")):
            follower = self.follow(daemon, *(() if name == "w" else ("--map", self.map_of(**{name: "w"}))))
            self.follower_has(follower, 1)
            self.assertIn(said, follower.err)
            follower.kill()
            with psd.SharedVersions(self.file) as versions:
                versions.wait(timeout=WAIT_S)
                self.assertEqual(set(versions.tensors()), {name, "scalar", "matrix"})
        again = self.follow(daemon)
        until("it knows its file", lambda: "version 1 is in" in again.out)

    def test_maps_that_are_wrong(self):
        daemon = self.publishing(folder=None)
        self.published(self.joined(daemon, WIDE), daemon)
        self.assert_fails(self.follow(daemon, "--map", self.map_of(a="nothing")), 'tensors["a"]', "there is no tensor 'nothing'")
        self.assert_fails(self.follow(daemon, "--map", self.map_of(a=["w", "matrix"])), "matrix F32[3,5] does not fit")
        self.assert_fails(self.follow(daemon, "--map", self.write("bad.json", "{")), "bad.json")
        self.assert_fails(self.start_psd("export", "checkpoint", "--to", "file", "--map", "x"), "--map requires --published")
        with psd.SharedVersions(self.file) as versions, self.assertRaises(psd.DeadlineExceeded):
            versions.wait(timeout=0)


class Torch(SharedTest):
    def test_tensors_of_pytorch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("PyTorch is not installed")
        daemon = self.publishing(folder=None)
        trainer, versions = self.joined(daemon, WIDE), self.versions()
        self.follow(daemon)
        self.published(trainer, daemon, 3)
        versions.wait(timeout=WAIT_S)
        tensors = versions.torch_tensors()
        self.assertTrue(torch.equal(tensors["matrix"], torch.full((3, 5), 3.0)))
        tensors["matrix"].zero_()  # of this process alone
        with psd.SharedVersions(self.file) as other:
            other.wait(timeout=WAIT_S)
            self.assertEqual(other.tensors()["matrix"].min(), 3)


if __name__ == "__main__":
    processes.main()
