"""Published versions of a primary and its standby: one sequence, with the same bytes, whichever daemon serves it."""

import contextlib
import hashlib
import os
import subprocess
import threading
import unittest

import etcd
import numpy as np
import processes

import psd

MODEL = psd.Model("wide", {"w": (300_001,), "scalar": (), "matrix": (3, 5)})
KILLS = int(os.environ.get("STANDBY_VERSIONS_KILLS", "4"))
PATIENT = {"silence_ms": 1000, "alone_ms": 20_000}


class Reading(threading.Thread):
    """Follows until the end, and notes every version: its bytes, and whether it is of one instant."""

    def __init__(self, test, addresses):
        super().__init__(daemon=True)
        self.follower = psd.Follower(addresses, on_event=lambda *_: None, retry_timeout=processes.WAIT_S)
        self.seen, self.faults, self.ended, self.condition = [], [], False, threading.Condition()
        test.addCleanup(self.finish)
        self.start()

    def run(self):
        while not self.ended:
            try:
                number = self.follower.wait(timeout=processes.WAIT_S)
            except psd.Error as error:
                if not self.ended:
                    self.faults.append(repr(error))
                return
            tensors = self.follower.tensors()
            values = {value for array in tensors.values() for value in np.unique(array).tolist()}
            if len(values) != 1:
                self.faults.append(f"version {number} is a mixture: {sorted(values)[:4]}")
            digest = hashlib.sha256(b"".join(array.tobytes() for array in tensors.values())).hexdigest()
            with self.condition:
                self.seen.append((self.follower.info.history, number, digest))
                self.condition.notify_all()

    def until_more(self, count):
        with self.condition:
            wanted = len(self.seen) + count
            if not self.condition.wait_for(lambda: len(self.seen) >= wanted or self.faults, processes.WAIT_S):
                raise AssertionError(f"no {count} more versions after {self.seen[-1:]}")

    def finish(self):
        self.ended = True
        self.follower.close()
        self.join(processes.WAIT_S)


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class StandbyVersions(processes.ProcessTest):
    def setUp(self):
        self.etcd = etcd.Etcd(self)
        self.addresses = [self.unix_address("a.sock"), self.unix_address("b.sock")]

    def one(self, place, durable=True, wait="standby", publish=None, **settings):
        if durable:
            settings["durability"] = {"type": "log", "path": str(self.folder / place)}
        return self.daemon(listen=(self.unix_address(f"{place}.sock"),), policy="sync", optimizer='{"type":"sgd","lr":1.0}',
                           engine={"endpoints": self.etcd.endpoints, "prefix": "/psd/test"}, replication={**PATIENT, "wait": wait},
                           publish=publish or {"every_updates": 1, "keep": 3}, **settings)

    def until_primary(self, daemon):
        daemon.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")

    def training(self):
        """Pushes until the test ends."""
        client, ended = psd.Client(self.addresses, retry_timeout=processes.WAIT_S), threading.Event()
        client.join(MODEL, MODEL.zeros(), 0, 1)
        values, down = MODEL.zeros(), -np.ones(MODEL.size, np.float32)

        def push():
            with contextlib.suppress(psd.Interrupted):
                while not ended.is_set():
                    client.pull(values)
                    client.push(down)

        thread = threading.Thread(target=push, daemon=True)
        thread.start()

        def finish():
            ended.set()
            client.interrupt()
            thread.join(processes.WAIT_S)
            client.close()

        self.addCleanup(finish)

    def pair(self, **settings):
        primary = self.one("a", **settings)
        self.until_primary(primary)
        self.training()
        standby = self.one("b", **settings)
        primary.until_status("a standby follows", lambda status: status["replica_set"]["standby"] == status["replica_set"]["follower"] != "")
        return primary, standby

    def check(self, reading, histories=1):
        self.assertEqual(reading.faults, [])
        self.assertEqual(len({history for history, _, _ in reading.seen}), histories)
        for history in {each for each, _, _ in reading.seen}:
            numbers = [number for each, number, _ in reading.seen if each == history]
            self.assertEqual(numbers, sorted(set(numbers)), "numbers fell")

    def same_in_both(self):
        """The versions that lie in both folders have the same bytes."""
        versions = [{path.name: path.read_bytes() for path in (self.folder / place / "versions").glob("version-*")} for place in "ab"]
        return versions[0].keys() & versions[1].keys(), [name for name in versions[0].keys() & versions[1].keys()
                                                         if versions[0][name] != versions[1][name]]

    def test_one_sequence_through_kills(self):
        self.through_kills(durable=True)
        both, different = self.same_in_both()
        self.assertTrue(both)
        self.assertEqual(different, [])

    def test_one_sequence_in_memory(self):
        self.through_kills(durable=False)

    def through_kills(self, durable):
        names = ["a", "b"]
        daemons = list(self.pair(durable=durable))
        reading = Reading(self, self.addresses)
        reading.until_more(3)
        for _ in range(KILLS):
            daemons[0].kill()
            self.until_primary(daemons[1])
            reading.until_more(3)
            daemons.reverse()
            names.reverse()
            daemons[1] = self.one(names[1], durable=durable)
            daemons[0].until_in_sync()
            reading.until_more(3)
        self.check(reading)
        daemons[0].kill()
        daemons[1].kill()
        reading.finish()

    def test_a_lease_and_a_switchover(self):
        primary, standby = self.pair()
        follower = psd.Follower(self.addresses, on_event=lambda *_: None, retry_timeout=processes.WAIT_S)
        self.addCleanup(follower.close)
        held = follower.wait(timeout=processes.WAIT_S)
        history = follower.info.history
        reading = Reading(self, self.addresses)
        with follower.pin():
            reading.until_more(5)
            primary.kill()
            self.until_primary(standby)
            reading.until_more(5)
            self.assertIn(held, [each.number for each in follower.versions()])
            again = self.one("a")
            standby.until_in_sync()
            standby.switch_over()
            self.until_primary(again)
            reading.until_more(5)
            self.assertIn(held, [each.number for each in follower.versions()])
        self.assertEqual({each.history for each in follower.versions()}, {history})
        self.check(reading)

    def test_a_standby_has_no_versions_itself(self):
        primary, standby = self.pair()
        alone = psd.Follower(standby.address, on_event=lambda *_: None, retry_timeout=0.2)
        self.addCleanup(alone.close)
        with self.assertRaises(psd.Unavailable) as caught:
            alone.wait(timeout=2)
        self.assertIn("its primary has the published versions", str(caught.exception))
        following = self.psd_follow(",".join([standby.address, primary.address]))
        self.assertTrue(following.exists())

    def psd_follow(self, servers):
        into = self.folder / "model"
        done = subprocess.run([processes.PSD, "follow", "--server", servers, "--into", str(into), "--once"], capture_output=True,
                              text=True, timeout=processes.WAIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return into / "model.safetensors"

    def test_versions_that_the_standby_lacks_begin_another_history(self):
        primary, standby = self.pair(wait="none")
        follower = psd.Follower(self.addresses, on_event=lambda *_: None, retry_timeout=processes.WAIT_S)
        self.addCleanup(follower.close)
        follower.wait(timeout=processes.WAIT_S)
        history = follower.info.history
        primary.kill()
        self.until_primary(standby)

        def followed():
            with contextlib.suppress(psd.ModelMismatch):
                follower.wait(timeout=processes.WAIT_S)
            return follower.info.history != history

        processes.until("the follower has a version of the new history", followed)


if __name__ == "__main__":
    processes.main()
