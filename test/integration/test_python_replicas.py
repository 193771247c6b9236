"""Replicas: daemons that copy the versions of another one and serve readers."""

import hashlib
import json
import os
import random
import threading

import cutter
import numpy as np
import processes
from test_weight_store import StoreTest

import psd

SHAPE = (300_007,)
KILLS = int(os.environ.get("REPLICA_KILLS", "12"))


def weights(step):
    """A hundredth of the elements of a step differ from those of the step before; all elements name their step in `all`."""
    values = np.arange(SHAPE[0], dtype=np.float32)
    values[step % 100::100] += step
    return {"some": values, "all": np.full((5_003,), step, np.int64)}


def digest(tensors):
    return hashlib.sha256(b"".join(tensors[name].tobytes() for name in sorted(tensors))).hexdigest()


class ReplicaTest(StoreTest):
    def replica(self, *upstream, listen="tcp://127.0.0.1:0", folder=None, environment=None, more=()):
        """A replica of these addresses; `folder` None: in memory."""
        flags = ["--listen", listen, "--replica-of", ",".join(upstream), *more]
        if folder:
            flags += ["--set", f"publish.path={self.folder / folder}"]
        daemon = processes.Daemon(self.folder, self._name("psd"), flags, environment)
        self.processes.append(daemon)
        return daemon

    def reader(self, *addresses, **options):
        follower = psd.Follower(list(addresses), on_event=lambda *_: None, retry_timeout=processes.WAIT_S, **options)
        self.addCleanup(follower.close)
        return follower

    def assert_has(self, follower, step):
        found = follower.tensors()
        for name, array in weights(step).items():
            np.testing.assert_array_equal(found[name], array)

    @staticmethod
    def upstream(daemon):
        return daemon.status()["publish"]["upstream"]

    @staticmethod
    def until_complete(daemon, number):
        daemon.until_status(f"it has version {number}", lambda status: status["publish"]["newest"] == number
                            and status["publish"]["upstream"]["newest"] == number)

    @staticmethod
    def files(folder):
        return {path.name: path.read_bytes() for path in folder.glob("version-*")}


class Copies(ReplicaTest):
    def test_the_same_bytes_in_a_chain(self):
        source = self.store()
        publisher = self.publisher(source)
        first = self.replica(source.address, folder="first")
        second = self.replica(first.address, folder="second")
        follower = self.reader(second.address)
        for step in range(1, 5):
            version = publisher.publish(step, weights(step))
            self.assertEqual(follower.wait(timeout=processes.WAIT_S), version.number)
            self.assert_has(follower, step)
            self.assertEqual((follower.info.history, follower.info.step), (version.history, step))
        whole = follower.info.bytes
        self.assertLess(follower.received_bytes, 1.5 * whole)  # patches leave from a replica, too
        self.until_complete(second, 4)
        self.assertEqual(self.files(self.folder / "second"), self.files(self.folder / "versions"))
        freshness = follower.freshness()
        self.assertEqual((freshness.newest, freshness.source_newest, freshness.versions_behind, freshness.hops), (4, 4, 0, 2))
        self.assertEqual(self.upstream(second)["hops"], 2)
        self.assertEqual(self.reader(source.address).freshness().hops, 0)

    def test_a_late_one_copies_the_newest(self):
        source = self.store()
        publisher = self.publisher(source)
        for step in (1, 2, 3):
            publisher.publish(step, weights(step))
        replica = self.replica(source.address)
        follower = self.reader(replica.address)
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 3)
        self.assertEqual([version.number for version in follower.versions()], [3])
        with self.assertRaisesRegex(psd.NotReady, "version 2"):
            follower.fetch(2, timeout=processes.WAIT_S)

    def test_restarts(self):
        """A replica that comes back serves what it has without its source, and copies what it has missed."""
        address = self.store().address
        source = self.processes[-1]
        publisher = self.publisher(address, retry_timeout=processes.WAIT_S)
        replica = self.replica(address, folder="copy")
        publisher.publish(1, weights(1))
        publisher.publish(2, weights(2))
        self.until_complete(replica, 2)
        replica.kill()
        source.kill()
        replica = self.replica(address, folder="copy")
        follower = self.reader(replica.address)
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 2)
        self.assert_has(follower, 2)
        freshness = follower.freshness()
        self.assertEqual((freshness.seconds_behind, freshness.hops, freshness.newest), (None, None, 2))
        self.assertIn("no daemon is reached", self.psd("status", "--server", replica.address))
        source = self.store(listen=address)
        publisher.publish(3, weights(3))
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 3)
        self.assert_has(follower, 3)

    def test_leases_keep_versions_here(self):
        source = self.store(publish__keep=1)
        publisher = self.publisher(source)
        replica = self.replica(source.address, more=["--set", "publish.keep=1"])
        publisher.publish(1, weights(1))
        follower = self.reader(replica.address)
        follower.wait(timeout=processes.WAIT_S)
        with follower.pin():
            for step in (2, 3, 4):
                publisher.publish(step, weights(step))
                self.until_complete(replica, step)
            self.assertIn(1, [version.number for version in follower.versions()])
            self.assertNotIn(1, [version["number"] for version in source.status()["publish"]["versions"]])
        replica.until_status("the version that was pinned is gone", lambda status: [4] == [version["number"] for version in status["publish"]["versions"]])

    def test_kept_by_training(self):
        """Versions of a model in training, with psd follow as the reader."""
        source = self.daemon(policy="locked", publish={"keep": 2})
        client = psd.Client(source.address)
        self.addCleanup(client.close)
        model = psd.Model("m", {"w": (1000,)})
        client.join(model, model.zeros(), 0, 1)
        client.push(np.ones(model.size, np.float32))
        replica = self.replica(source.address)
        self.psd("publish", "--server", source.address)
        self.psd("follow", "--server", replica.address, "--into", self.folder / "into", "--once")
        self.assertTrue((self.folder / "into" / "model.safetensors").exists())
        self.assertRegex(self.psd("versions", "--server", replica.address), r"(?m)^ *1 +1 ")


class Failures(ReplicaTest):
    def test_another_source(self):
        """Where the daemon that it follows ends, a replica follows the next one; its readers notice nothing."""
        source = self.store()
        publisher = self.publisher(source)
        middle = self.replica(source.address)
        leaf = self.replica(middle.address, source.address)
        follower = self.reader(leaf.address)
        publisher.publish(1, weights(1))
        follower.wait(timeout=processes.WAIT_S)
        self.assertEqual(self.upstream(leaf)["address"], middle.address)
        middle.kill()
        publisher.publish(2, weights(2))
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 2)
        leaf.until_status("it follows the source", lambda status: status["publish"]["upstream"]["address"] == source.address)

    def test_a_reader_changes_to_another_replica(self):
        source = self.store()
        publisher = self.publisher(source)
        replicas = [self.replica(source.address) for _ in range(2)]
        follower = self.reader(*(replica.address for replica in replicas))
        publisher.publish(1, weights(1))
        follower.wait(timeout=processes.WAIT_S)
        replicas[0].kill()
        publisher.publish(2, weights(2))
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 2)
        self.assert_has(follower, 2)

    def test_numbers_never_fall_at_a_replica_that_lags(self):
        source = self.store()
        publisher = self.publisher(source)
        replica = self.replica(source.address, folder="copy")
        publisher.publish(1, weights(1))
        self.until_complete(replica, 1)
        replica.kill()
        publisher.publish(2, weights(2))
        follower = self.reader(source.address, replica.address)
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 2)
        lagging = self.replica(f"tcp://{processes.LOOPBACK}:1", listen=replica.address, folder="copy")
        self.assertEqual([version.number for version in self.reader(lagging.address).versions()], [1])
        source.kill()
        with self.assertRaises(psd.DeadlineExceeded):
            follower.wait(timeout=0.5)
        self.assertEqual(follower.version, 2)

    def test_pins_follow_the_reader(self):
        """A lease is renewed where it was granted, and where that replica dies at another one."""
        source = self.store()
        publisher = self.publisher(source)
        replicas = [self.replica(source.address, more=["--set", "publish.keep=1"]) for _ in range(2)]
        publisher.publish(1, weights(1))
        for replica in replicas:
            self.until_complete(replica, 1)
        replicas[0].kill()
        follower = self.reader(*(replica.address for replica in replicas))
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 1)
        replicas[0] = self.replica(source.address, listen=replicas[0].address, more=["--set", "publish.keep=1"])
        with follower.pin(seconds=1):
            for step in (2, 3, 4):
                publisher.publish(step, weights(step))
                self.until_complete(replicas[1], step)
            processes.until("the lease is older", lambda: self.left(replicas[1]) < 0.9)
            processes.until("the lease was renewed", lambda: self.left(replicas[1]) > 0.9)
            self.assertIn(1, self.numbers(replicas[1]))
            self.assertEqual(replicas[0].status()["publish"]["leases"], [])
        self.assertEqual(replicas[1].status()["publish"]["leases"], [])

    @staticmethod
    def left(daemon):
        return max((lease["left_seconds"] for lease in daemon.status()["publish"]["leases"]), default=0)

    @staticmethod
    def numbers(daemon):
        return [version["number"] for version in daemon.status()["publish"]["versions"]]

    def test_a_history_that_ends(self):
        """The source loses its versions: the replica drops its copies, and each reader gets one error."""
        source = self.store(folder=None)
        address = source.address
        self.publisher(source).publish(1, weights(1))
        self.publisher(source).publish(2, weights(2))
        replica = self.replica(address, folder="copy")
        other = self.replica(address)
        follower = self.reader(replica.address, other.address)
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 2)
        self.until_complete(other, 2)
        old = follower.info.history
        source.kill()
        source = self.store(folder=None, listen=address)
        self.publisher(source).publish(7, weights(7))
        with self.assertRaisesRegex(psd.ModelMismatch, "has lost its versions"):
            while follower.wait(at_least=3, timeout=processes.WAIT_S):
                pass
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 1)
        self.assert_has(follower, 7)
        self.assertNotEqual(follower.info.history, old)
        self.assertEqual(list(self.files(self.folder / "copy")), ["version-0000000001.safetensors"])
        replica.kill()
        replica = self.replica(address, folder="copy")
        again = self.reader(replica.address)
        self.assertEqual((again.wait(timeout=processes.WAIT_S), again.info.history), (1, follower.info.history))

    def test_a_full_limit(self):
        source = self.store()
        replica = self.replica(source.address, more=["--set", "limits.version_bytes=1000000"])
        self.publisher(source).publish(1, weights(1))
        replica.until_status("it says why", lambda status: "limits.version_bytes" in status["publish"]["error"])
        self.assertEqual(self.reader(source.address).wait(timeout=processes.WAIT_S), 1)

    def test_random_kills(self):
        """Sources, replicas and readers are killed at random: each reader sees whole versions, whose numbers rise and mean the
        same bytes everywhere."""
        choice = random.Random(3)
        listen = dict.fromkeys(("source", "a", "b", "leaf"), f"tcp://{processes.LOOPBACK}:0")
        daemons = {}

        def start(name):
            if name == "source":
                daemons[name] = self.store(listen=listen[name])
            elif name == "leaf":
                daemons[name] = self.replica(listen["a"], listen["b"], listen=listen[name])
            else:
                daemons[name] = self.replica(listen["source"], listen=listen[name], folder=name)
            listen[name] = daemons[name].address

        for name in listen:
            start(name)
        publisher = self.publisher(listen["source"], retry_timeout=processes.WAIT_S)
        digests, faults, seen, ended = {}, [], [0, 0], threading.Event()

        def follow(index, addresses):
            last, at = 0, None
            while not ended.is_set():
                try:
                    if at is None or choice.random() < 0.05:
                        at = self.reader(*addresses)  # one that starts again
                        at.wait(at_least=last, timeout=processes.WAIT_S)
                    number = at.wait(timeout=0.5) if at.version <= last else at.version
                except psd.DeadlineExceeded:
                    continue
                except psd.Error as error:
                    faults.append(repr(error))
                    return
                step = at.info.step
                if number < last:
                    faults.append(f"version {number} after {last}")
                if digests.setdefault(number, digest(at.tensors())) != digest(at.tensors()) or digest(weights(step)) != digests[number]:
                    faults.append(f"version {number} is not whole")
                last = seen[index] = number

        threads = [threading.Thread(target=follow, args=arguments, daemon=True) for arguments in
                   ((0, (listen["leaf"], listen["a"])), (1, (listen["b"], listen["leaf"])))]
        for thread in threads:
            thread.start()
        number = 0
        try:
            for step in range(1, KILLS + 1):
                killed = choice.choice(list(daemons))
                publishing = self.in_background(publisher.publish, step, weights(step), timeout=processes.WAIT_S)
                if choice.random() < 0.5:
                    threads[0].join(choice.random() / 20)  # some moment of the publication
                daemons[killed].kill()
                start(killed)
                version = publishing()
                self.assertIsInstance(version, psd.PublishedVersion, version)
                self.assertGreater(version.number, number)
                number = version.number
            processes.until("both readers have the newest version", lambda: min(seen) == number or faults)
        finally:
            ended.set()
            for thread in threads:
                thread.join(processes.WAIT_S)
        self.assertEqual(faults, [])


class Elsewhere(ReplicaTest):
    def test_a_history_that_ended_does_not_return(self):
        """While the source is away, a reader and a restarted replica do not go back to what a lagging replica still has."""
        source = self.store(folder=None)
        publisher = self.publisher(source)
        publisher.publish(1, weights(1))
        lagging = self.replica(source.address, folder="lagging")
        self.until_complete(lagging, 1)
        lagging.kill()
        source.kill()
        source = self.store(folder=None, listen=source.address)
        lagging = self.replica(f"tcp://{processes.LOOPBACK}:1", listen=lagging.address, folder="lagging")
        follower = self.reader(source.address, lagging.address)
        current = self.replica(source.address, folder="current")
        self.publisher(source).publish(2, weights(2))
        follower.wait(timeout=processes.WAIT_S)
        self.until_complete(current, 1)
        history = follower.info.history
        behind = self.reader(lagging.address, current.address)  # knows the ended history
        self.assertEqual(behind.wait(timeout=processes.WAIT_S), 1)
        self.assertNotEqual(behind.info.history, history)
        lagging.kill()
        with self.assertRaises(psd.ModelMismatch):
            while behind.wait(at_least=2, timeout=processes.WAIT_S):
                pass
        self.assertEqual(behind.wait(timeout=processes.WAIT_S), 1)
        self.assertEqual(behind.info.history, history)
        current.kill()
        source.kill()
        lagging = self.replica(f"tcp://{processes.LOOPBACK}:1", listen=lagging.address, folder="lagging")
        with self.assertRaises((psd.Stale, psd.DeadlineExceeded)):
            behind.wait(timeout=1)
        self.assertEqual(behind.info.history, history)
        current = self.replica(source.address, lagging.address, listen=current.address, folder="current")
        current.until_status("it refuses the ended one", lambda status: status["publish"]["error"])
        self.assertEqual(f"{history:016x}", current.status()["publish"]["history"])

    def lagging(self, source):
        """A replica that has the newest version, and gets no later ones."""
        replica = self.replica(source.address, folder="copy")
        self.until_complete(replica, source.status()["publish"]["newest"])
        replica.kill()
        return self.replica(f"tcp://{processes.LOOPBACK}:1", listen=replica.address, folder="copy")

    def test_a_patch_that_breaks_off_is_read_elsewhere(self):
        """Also where the next server does not have the version, and the one after that does."""
        source = self.store()
        publisher = self.publisher(source)
        publisher.publish(1, weights(1))
        (whole,) = self.files(self.folder / "versions").values()
        relay = cutter.Cutter(self, source.address, len(whole) + 20_000, *[1] * 100)  # within the patch, then at once
        follower = self.reader(relay.address, self.lagging(source).address, source.address)
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 1)
        publisher.publish(2, weights(2))
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 2)
        self.assertGreater(relay.connections, 1)
        self.assert_has(follower, 2)

    def test_a_version_that_breaks_off_is_read_elsewhere(self):
        """Also where the next server does not have it, and the one after that does."""
        source = self.store()
        publisher = self.publisher(source)
        relay = cutter.Cutter(self, source.address, 600_000)
        publisher.publish(1, weights(1))
        lagging = self.lagging(source)
        publisher.publish(2, weights(2))
        follower = self.reader(relay.address, lagging.address, source.address)
        waits = self.in_background(follower.wait, timeout=processes.WAIT_S)
        processes.until("it reads through the relay", lambda: relay.connections == 1)
        relay.listening.close()
        self.assertEqual(waits(), 2)
        self.assert_has(follower, 2)

    def test_an_outdated_one_is_left_again(self):
        """Where all daemons upstream are out of date, a replica notices which one is current again."""
        source = self.store()
        publisher = self.publisher(source)
        publisher.publish(1, weights(1))
        cut = self.replica(source.address, folder="cut")
        self.until_complete(cut, 1)
        cut.kill()
        cut = self.replica(f"tcp://{processes.LOOPBACK}:1", listen=cut.address, folder="cut")
        address = source.address
        source.kill()
        leaf = self.replica(address, cut.address)
        leaf.until_status("it follows the outdated one", lambda status: status["publish"]["upstream"]["address"] == cut.address)
        source = self.store(listen=address)
        publisher = self.publisher(source)
        publisher.publish(2, weights(2))
        self.until_complete(leaf, 2)

    def test_credentials_are_read_again(self):
        self.make_token_file("other", "reader", "others")
        token = self.make_token_file("copy", "reader")
        source = self.store("--set", f"auth.tokens={self.folder / 'tokens'}")
        good = token.read_text()
        token.write_text((self.folder / "other.token").read_text())
        replica = self.replica(source.address, more=["--set", f"publish.token_file={token}"])
        replica.until_status("it is refused", lambda status: status["publish"]["error"])
        token.write_text(good)
        replica.until_status("it follows", lambda status: status["publish"]["upstream"]["address"])


class Bounds(ReplicaTest):
    def test_stale(self):
        source = self.store()
        self.publisher(source).publish(1, weights(1))
        replica = self.replica(source.address)
        self.until_complete(replica, 1)
        follower = self.reader(replica.address, max_seconds_behind=4)
        processes.until("the replica is current", lambda: self.current(follower))
        waits = self.in_background(follower.wait)
        source.kill()
        outcome = waits()
        self.assertIsInstance(outcome, psd.Stale)
        self.assertIn("further behind its source", str(outcome))
        with self.assertRaises(psd.Stale):
            follower.wait(timeout=0.2)
        self.assertEqual(follower.version, 1)  # what it holds stays
        unbounded = self.reader(replica.address)
        self.assertEqual(unbounded.wait(timeout=processes.WAIT_S), 1)

    @staticmethod
    def current(follower):
        try:
            return follower.wait(timeout=processes.WAIT_S) == 1
        except psd.Stale:  # on a machine that stands still for seconds
            return False

    def test_another_server_within_the_bound(self):
        source = self.store()
        publisher = self.publisher(source)
        publisher.publish(1, weights(1))
        replica = self.replica(source.address)
        self.until_complete(replica, 1)
        unreached = self.replica(f"tcp://{processes.LOOPBACK}:1")
        follower = self.reader(unreached.address, replica.address, max_seconds_behind=processes.WAIT_S, max_versions_behind=0)
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 1)
        with self.assertRaisesRegex(psd.Stale, "an unknown time"):
            self.reader(unreached.address, max_versions_behind=5).wait(timeout=0.2)

    def test_a_command_within_the_bound(self):
        source = self.store()
        self.publisher(source).publish(1, weights(1))
        replica = self.replica(source.address)
        self.until_complete(replica, 1)
        unreached = self.replica(f"tcp://{processes.LOOPBACK}:1")
        follow = ("follow", "--into", self.folder / "into", "--max-versions-behind", "0", "--max-seconds-behind", str(processes.WAIT_S), "--once")
        refused = self.run_psd(*follow, "--server", unreached.address)
        self.assertEqual(refused.returncode, 1)
        self.assertRegex(refused.stderr, "further behind its source than this reader accepts: .* last complete at an unknown time")
        followed = self.run_psd(*follow, "--server", f"{unreached.address},{replica.address}")
        self.assertEqual(followed.returncode, 0, followed.stderr)
        self.assertIn("version 1: ", followed.stdout)
        for flag, value in (("--max-versions-behind", "-1"), ("--max-seconds-behind", "soon")):
            with self.subTest(flag):
                done = self.run_psd("follow", "--server", replica.address, "--into", self.folder / "into", flag, value)
                self.assertEqual(done.returncode, 2)
                self.assertIn(flag, done.stderr)

    def test_the_source_is_current(self):
        source = self.store()
        self.publisher(source).publish(1, weights(1))
        follower = self.reader(source.address, max_versions_behind=0, max_seconds_behind=0)
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 1)
        freshness = follower.freshness()
        self.assertEqual((freshness.seconds_behind, freshness.versions_behind), (0, 0))
        for name, value in (("max_versions_behind", -1), ("max_seconds_behind", -1), ("max_versions_behind", 1.5)):
            with self.subTest(name, value=value), self.assertRaisesRegex((psd.InvalidArgument, TypeError, ValueError), name):
                self.reader(source.address, **{name: value})


class Refusals(ReplicaTest):
    def test_circles(self):
        ports = [f"unix://{self.folder}/{name}.sock" for name in "ab"]
        one = self.replica(ports[1], listen=ports[0])
        two = self.replica(ports[0], listen=ports[1])
        alone = f"unix://{self.folder}/c.sock"
        itself = self.replica(alone, listen=alone)
        itself.until_status("it says so", lambda status: "is this daemon, or follows it" in status["publish"]["error"])
        processes.until("one of the two says so", lambda: any("follows it" in daemon.status()["publish"]["error"] for daemon in (one, two)))

    def test_what_a_replica_does_not_do(self):
        source = self.store()
        replica = self.replica(source.address)
        self.assertIn("publish there", self.refused("publish", "--server", replica.address))
        self.assertIn("roll back where it is trained", self.refused("rollback", "--server", replica.address, "1"))
        with self.assertRaisesRegex(psd.InvalidArgument, "publish.from"):
            self.publisher(replica).publish(1, weights(1))
        client = psd.Client(replica.address)
        self.addCleanup(client.close)
        with self.assertRaisesRegex(psd.InvalidArgument, "has no model"):
            client.join(psd.Model("m", {"w": (3,)}), np.zeros(3, np.float32), 0, 1)

    def test_configurations(self):
        for more, message in (
                (("--replica-of", ""), "--replica-of"),
                (("--replica-of", "node7"), "publish.upstream[0]"),
                (("--replica-of", "tcp://*:5500"), "cannot be dialled"),
                (("--replica-of", "tcp://a:5500,tcp://*:1"), "publish.upstream[1]"),
                (("--set", 'publish={"from":"upstream"}'), "publish.upstream: must name at least one daemon"),
                (("--replica-of", "tcp://a:5500", "--set", "policy.type=locked"), 'with publish.from "upstream" it has none'),
                (("--replica-of", "tcp://a:5500", "--set", "publish.every_seconds=3"), 'requires from "training", not "upstream"'),
                (("--set", 'publish={"upstream":["tcp://a:5500"]}'), 'publish.upstream: requires from "upstream", not "training"')):
            with self.subTest(more):
                self.assertIn(message, self.refused("check", *more))
        shown = json.loads(self.psd("check", "--replica-of", "tcp://a:5500,tcp://b:5500"))
        self.assertEqual(shown["publish"]["upstream"], ["tcp://a:5500", "tcp://b:5500"])
        self.assertNotIn("policy", shown)

    def test_folders(self):
        source = self.store()
        self.publisher(source).publish(1, weights(1))
        source.kill()
        before = self.files(self.folder / "versions")
        message = self.refused("--replica-of", "tcp://a:5500", "--listen", "tcp://127.0.0.1:0",
                               "--set", f"publish.path={self.folder / 'versions'}")
        self.assertIn("a replica needs a folder of its own", message)
        self.assertEqual(self.files(self.folder / "versions"), before)
        # A store over a replica's folder may lack versions, so it begins another history.
        source = self.store()
        replica = self.replica(source.address, folder="copy")
        self.until_complete(replica, 1)
        replica.kill()
        promoted = self.store(folder="copy")
        version = self.publisher(promoted).publish(2, weights(2))
        self.assertEqual(version.number, 2)
        self.assertNotEqual(version.history, self.reader(source.address).versions()[0].history)

    def test_roles(self):
        tokens = {name: self.make_token_file(name, role) for name, role in (("copy", "reader"), ("none", "publisher"))}
        source = self.store("--set", f"auth.tokens={self.folder / 'tokens'}")
        publisher = psd.Publisher(source.address, token_file=tokens["none"], on_event=lambda *_: None)
        self.addCleanup(publisher.close)
        publisher.publish(1, weights(1))
        replica = self.replica(source.address, more=["--set", f"publish.token_file={tokens['copy']}"])
        self.until_complete(replica, 1)
        without = self.replica(source.address)
        without.until_status("it says why", lambda status: "token" in status["publish"]["error"])


if __name__ == "__main__":
    processes.main()
