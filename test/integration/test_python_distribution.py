"""What programs that distribute weights by other means report as faults, at psd: halves, broken chains, numbers that fall,
peers that hang, versions without a name. Versions travel as patches here, and whole where there is none."""

import hashlib
import json
import random
import signal
import subprocess
import sys

import cutter
import numpy as np
import processes

import psd

MODEL = psd.Model("wide", {"w": (700_001,), "scalar": (), "matrix": (3, 5)})
WHOLE = 4 * MODEL.size


class Distribution(processes.ProcessTest):
    def publishing(self, keep=4, listen=None, **settings):
        return self.daemon(policy="locked", listen=listen or ("tcp://127.0.0.1:0",), optimizer='{"type":"sgd","lr":1.0}',
                           durability={"type": "log", "path": str(self.folder / "saved")}, publish={"keep": keep}, **settings)

    def trainer(self, address):
        client = psd.Client(address, retry_timeout=processes.WAIT_S)
        self.addCleanup(client.close)
        client.join(MODEL, MODEL.zeros(), 0, 1)
        return client

    def follower(self, address):
        follower = psd.Follower(address, on_event=lambda *_: None, retry_timeout=processes.WAIT_S)
        self.addCleanup(follower.close)
        return follower

    def publish(self, daemon, trainer, changed=0.01):
        """A version in which that share of the elements differs from the one before."""
        gradient = np.zeros(MODEL.size, np.float32)
        places = self.random.choice(MODEL.size, int(changed * MODEL.size), replace=False)
        gradient[places] = self.random.standard_normal(places.size)
        trainer.push(gradient)
        done = subprocess.run([processes.PSD, "publish", "--server", daemon.address], capture_output=True, text=True,
                              timeout=processes.WAIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def file_of(self, number):
        return self.folder / "saved" / "versions" / f"version-{number:010}.safetensors"

    def assert_exact(self, follower, number):
        """The version held has the bytes of the daemon's file."""
        self.assertEqual(follower.version, number)
        data = self.file_of(number).read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        held = b"".join(array.tobytes() for array in follower.tensors().values())
        self.assertEqual(len(held), len(data) - begin)
        self.assertEqual(sorted(hashlib.sha256(array.tobytes()).hexdigest() for array in follower.tensors().values()),
                         sorted(hashlib.sha256(part).hexdigest() for part in self.parts(data, begin)))

    @staticmethod
    def parts(data, begin):
        header = json.loads(data[8:begin])
        header.pop("__metadata__")
        return [data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]] for entry in header.values()]

    def setUp(self):
        self.random = np.random.default_rng(5)

    def test_only_what_changed_travels(self):
        daemon = self.publishing()
        trainer, follower = self.trainer(daemon.address), self.follower(daemon.address)
        self.publish(daemon, trainer)
        follower.wait(timeout=processes.WAIT_S)
        whole = follower.received_bytes
        self.assertGreater(whole, WHOLE)
        earlier = follower.tensors()["w"]
        before = np.array(earlier)
        for number in range(2, 5):
            self.publish(daemon, trainer)
            self.assertEqual(follower.wait(timeout=processes.WAIT_S), number)
            self.assert_exact(follower, number)
        np.testing.assert_array_equal(earlier, before)  # an earlier version stays as it is
        # Position and value of 1 % of the elements, three times.
        self.assertLess(follower.received_bytes - whole, 3 * 0.02 * WHOLE)
        self.publish(daemon, trainer)
        self.publish(daemon, trainer)
        patched = follower.received_bytes
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 6)  # by the union of two patches
        self.assert_exact(follower, 6)
        self.assertLess(follower.received_bytes - patched, 0.03 * WHOLE)
        patched = follower.received_bytes
        self.publish(daemon, trainer, changed=1)
        follower.wait(timeout=processes.WAIT_S)
        self.assert_exact(follower, 7)
        self.assertGreater(follower.received_bytes - patched, WHOLE)

    def test_an_apply_is_whole_or_not_at_all(self):
        daemon = self.publishing()
        trainer = self.trainer(daemon.address)
        self.publish(daemon, trainer)
        # The connections break within the first version, then within a patch, then within the next whole one.
        relay = cutter.Cutter(self, daemon.address, 500_000, 2_850_000, 20_000, 1_500_000)
        follower = self.follower(relay.address)
        for number, changed in ((1, 0), (2, 0.01), (3, 0.01), (4, 1), (5, 0.01)):
            if number > 1:
                self.publish(daemon, trainer, changed)
            self.assertEqual(follower.wait(timeout=processes.WAIT_S), number)
            self.assert_exact(follower, number)
        self.assertGreater(relay.connections, 2)

    def test_a_chain_survives_pruning_and_a_resume(self):
        address = self.unix_address("a.sock")
        daemon = self.publishing(keep=2, listen=(address,))
        trainer, follower, other = self.trainer(address), self.follower(address), self.follower(address)
        self.publish(daemon, trainer)
        follower.wait(timeout=processes.WAIT_S)
        other.wait(timeout=processes.WAIT_S)
        for _ in range(4):
            self.publish(daemon, trainer)
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 5)  # the versions after its own are gone
        self.assert_exact(follower, 5)
        daemon.kill()
        (self.folder / "saved" / "versions" / "patch-0000000005.psdpatch").write_bytes(b"torn")
        daemon = self.publishing(keep=2, listen=(address,))
        self.publish(daemon, trainer)
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 6)
        self.assert_exact(follower, 6)
        self.assertEqual(other.wait(timeout=processes.WAIT_S), 6)
        self.assert_exact(other, 6)

    def test_a_patch_that_was_damaged_on_its_way_is_replaced_by_the_whole_version(self):
        daemon = self.publishing()
        trainer, follower = self.trainer(daemon.address), self.follower(daemon.address)
        self.publish(daemon, trainer)
        follower.wait(timeout=processes.WAIT_S)
        self.publish(daemon, trainer)
        patch = self.folder / "saved" / "versions" / "patch-0000000002.psdpatch"
        data = bytearray(patch.read_bytes())
        data[len(data) // 2] ^= 1
        patch.write_bytes(data)
        before = follower.received_bytes
        with self.assertLogs("psd", "WARNING") as logged:
            self.assertEqual(follower.wait(timeout=processes.WAIT_S), 2)
        self.assertIn("the patch is damaged", logged.output[0])
        self.assert_exact(follower, 2)
        self.assertGreater(follower.received_bytes - before, WHOLE)

    def test_a_reader_that_stands_still_or_dies_delays_no_other(self):
        daemon = self.publishing(keep=2)
        trainer, follower = self.trainer(daemon.address), self.follower(daemon.address)
        self.publish(daemon, trainer)
        script = "import psd, sys, time\nf = psd.Follower(sys.argv[1])\nwhile True:\n    f.wait(); print(f.version, flush=True)\n"
        with subprocess.Popen([sys.executable, "-c", script, daemon.address], stdout=subprocess.PIPE, text=True) as reader:
            try:
                self.assertEqual(reader.stdout.readline(), "1\n")
                reader.send_signal(signal.SIGSTOP)
                for number in range(2, 8):
                    self.publish(daemon, trainer)
                    self.assertEqual(follower.wait(timeout=processes.WAIT_S), number)
                reader.send_signal(signal.SIGCONT)
                while reader.stdout.readline() != "7\n":
                    self.assertIsNone(reader.poll())
            finally:
                reader.kill()
        self.publish(daemon, trainer)
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 8)

    def test_a_version_can_be_named_everywhere(self):
        daemon = self.publishing()
        trainer, follower = self.trainer(daemon.address), self.follower(daemon.address)
        self.publish(daemon, trainer)
        self.publish(daemon, trainer)
        follower.wait(timeout=processes.WAIT_S)
        self.assertEqual((follower.info.number, follower.info.step), (2, 2))
        data = self.file_of(2).read_bytes()
        metadata = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        self.assertEqual((metadata["psd.version"], metadata["psd.step"]), ("2", "2"))
        self.assertEqual([each.number for each in follower.versions()], [1, 2])

    def test_a_late_joiner_needs_one_read_and_then_patches(self):
        daemon = self.publishing()
        trainer = self.trainer(daemon.address)
        for _ in range(5):
            self.publish(daemon, trainer)
        follower = self.follower(daemon.address)
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 5)
        self.assertLess(follower.received_bytes, 1.01 * WHOLE)
        self.publish(daemon, trainer)
        follower.wait(timeout=processes.WAIT_S)
        self.assertLess(follower.received_bytes, 1.05 * WHOLE)
        self.assert_exact(follower, 6)

    def test_psd_follow_patches_its_file(self):
        daemon = self.publishing()
        trainer, into = self.trainer(daemon.address), self.folder / "model"
        self.publish(daemon, trainer)
        follow = processes.Process(self.folder, self._name("follow"), [processes.PSD, "follow", "--server", daemon.address, "--into", str(into)])
        self.addCleanup(follow.kill)
        for number in range(1, 5):
            if number > 1:
                self.publish(daemon, trainer, random.Random(number).choice((0.01, 0.05, 1)))
            processes.until(f"version {number} is in the file",
                            lambda: (into / "model.safetensors").exists()
                            and (into / "model.safetensors").read_bytes() == self.file_of(number).read_bytes())


if __name__ == "__main__":
    processes.main()
