"""Published versions of a model as their daemon makes them: when, of which moment, in which files; psd publish and
psd versions; what kill -9 leaves; limits and refusals."""

import hashlib
import json
import random
import struct
import urllib.request

from processes import WAIT_S, ProcessTest, main, until


def header_of(path):
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    return json.loads(data[8:8 + size])


class PublishTest(ProcessTest):
    def publishing(self, *arguments, policy="locked", durable=True, **settings):
        if durable:
            settings.setdefault("durability", {"type": "log", "path": str(self.folder / "saved")})
        settings.setdefault("publish", {})
        return self.daemon(*arguments, policy=policy, **settings)

    def versions(self, daemon):
        return json.loads(self.psd("versions", "--json", "--server", daemon.address))

    def numbers(self, daemon):
        return [each["number"] for each in self.versions(daemon)["versions"]]

    def file_of(self, number):
        return self.folder / "saved" / "versions" / f"version-{number:010}.safetensors"


class MakingTest(PublishTest):
    def test_on_demand(self):
        daemon = self.publishing()
        self.assertIn("the model has no values yet", self.refused("publish", "--server", daemon.address))
        self.assertEqual(self.psd("versions", "--server", daemon.address), "no version is published yet\n")
        self.assert_ends(self.train(daemon.address, steps=3))
        self.assertIn(": version 1, ", self.psd("publish", "--server", daemon.address))
        self.assertIn(": version 2, ", self.psd("publish", "--server", daemon.address))
        table = self.psd("versions", "--server", daemon.address)
        self.assertIn("version  step     ", table)
        self.assertIn("snapshot", table)
        self.assertIn("newest 2, 2 versions", self.psd("status", "--server", daemon.address))
        newest = self.versions(daemon)["versions"][-1]
        self.assertEqual(newest["step"], 3)
        self.assertEqual(newest["file_bytes"], self.file_of(2).stat().st_size)
        # The model has not changed between the two versions, so the data after the headers is equal.
        values = [path.read_bytes()[8 + struct.unpack("<Q", path.read_bytes()[:8])[0]:] for path in map(self.file_of, (1, 2))]
        self.assertEqual(values[0], values[1])
        self.assert_stops(daemon)
        self.assertFalse(self.file_of(3).exists())

    def test_by_updates_and_at_the_end(self):
        daemon = self.publishing(publish={"every_updates": 5, "keep": 3})
        self.assert_ends(self.train(daemon.address, steps=23))
        daemon.until_status("versions", lambda status: status["publish"]["newest"] > 0)
        self.assert_stops(daemon)
        names = sorted(path.name for path in (self.folder / "saved" / "versions").glob("version-*"))
        self.assertLessEqual(len(names), 3)
        last = header_of(self.folder / "saved" / "versions" / names[-1])
        self.assertEqual(last["__metadata__"]["psd.step"], "23")

    def test_by_time(self):
        daemon = self.publishing(publish={"every_seconds": 0.05}, durable=False)
        self.endless_trainer(daemon)
        status = daemon.until_status("three versions", lambda status: status["publish"]["newest"] >= 3)
        self.assertEqual(status["publish"]["path"], "")
        self.assertIn("in memory", self.psd("status", "--server", daemon.address))

    def test_moments(self):
        for policy, moment in (("sync", "round"), ("locked", "snapshot"), ("hogwild", "live")):
            with self.subTest(policy):
                daemon = self.publishing(policy=policy, durable=False, shards=3)
                self.assert_ends(self.train(daemon.address, steps=2))
                self.psd("publish", "--server", daemon.address)
                self.assertEqual(self.versions(daemon)["versions"][0]["moment"], moment)

    def test_rounds_of_groups_are_the_same(self):
        # Two groups with rounds of their own, which a trainer closes one after the other.
        groups = [{"match": "*bias", "policy": {"type": "sync"}, "optimizer": {"type": "sgd", "lr": 0.01}}]
        daemon = self.publishing(policy="sync", groups=groups, publish={"every_updates": 1, "keep": 1000})
        self.assert_ends(self.train(daemon.address, steps=200))
        versions = self.versions(daemon)["versions"]
        self.assertGreater(len(versions), 0)
        # A machine that delays the trainer by a second between its groups leaves no common round.
        moments = [each["moment"] for each in versions]
        self.assertLessEqual(set(moments), {"round", "snapshot"})
        self.assertIn("round", moments)

    def test_dtypes(self):
        for dtype, name in (("f32", "F32"), ("bf16", "BF16"), ("f16", "F16")):
            with self.subTest(dtype):
                path = self.folder / dtype
                daemon = self.publishing(publish={"as": dtype}, durability={"type": "checkpoint", "path": str(path)})
                self.assert_ends(self.train(daemon.address, steps=2))
                self.psd("publish", "--server", daemon.address)
                header = header_of(path / "versions" / "version-0000000001.safetensors")
                self.assertEqual({each["dtype"] for key, each in header.items() if key != "__metadata__"}, {name})
                checksums = header["__metadata__"]["psd.crc32c"].split(" ")
                self.assertEqual(len(checksums), len(header) - 1)

    def test_values_beyond_f16_fail_the_version_alone(self):
        daemon = self.publishing(publish={"as": "f16"}, optimizer='{"type":"sgd","lr":1e6}')
        self.assert_ends(self.train(daemon.address, steps=1))
        said = self.refused("publish", "--server", daemon.address)
        self.assertIn("tensor ", said)
        self.assertIn("f16", said)
        status = daemon.status()["publish"]
        self.assertEqual((status["failures"], status["published"]), (1, 0))
        self.assertIn("NOT PUBLISHED", self.psd("status", "--server", daemon.address))
        self.assertNotEqual(daemon.status()["state"], "stopping")

    def test_metrics(self):
        daemon = self.publishing("--http", "tcp://127.0.0.1:0")
        self.assert_ends(self.train(daemon.address, steps=1))
        self.psd("publish", "--server", daemon.address)
        with urllib.request.urlopen(daemon.page + "/metrics", timeout=WAIT_S) as answer:
            text = answer.read().decode()
        for line in ("psd_published_version 1", "psd_versions 1", "psd_version_leases 0", "psd_versions_published_total 1",
                     "psd_publish_failures_total 0", "psd_publish_failing 0"):
            self.assertIn(f"\n{line}\n", text)


    def test_calls_at_the_same_time(self):
        daemon = self.publishing(durable=False)
        self.assert_ends(self.train(daemon.address, steps=1))
        calls = [self.start_psd("publish", "--server", daemon.address) for _ in range(8)]
        for call in calls:
            self.assert_ends(call)
        newest = self.versions(daemon)["newest"]
        self.assertLessEqual(newest, 8)
        self.assertGreaterEqual(newest, 1)

    def test_a_schedule_that_fails_can_be_switched_off(self):
        daemon = self.publishing(publish={"every_updates": 1}, limits__version_bytes=65536)
        self.endless_trainer(daemon)
        daemon.until_status("it has failed", lambda status: status["publish"]["failures"] > 0)
        self.psd("set", "publish.every_updates=0", "--server", daemon.address)
        failures = daemon.status()["publish"]["failures"]
        updates = daemon.counter("updates")
        daemon.until_status("training continues", lambda status: status["counters"]["updates"] > updates + 200)
        self.assertLessEqual(daemon.status()["publish"]["failures"], failures + 1)

    def test_a_last_version_that_fails(self):
        daemon = self.publishing(publish={"every_seconds": 3600}, limits__version_bytes=65536)
        self.assert_ends(self.train(daemon.address, steps=2))
        said = self.refused("stop", "--server", daemon.address)
        self.assertIn("the last version: ", said)
        self.assertIn("must admit three", said)
        self.assertNotEqual(daemon.wait(), 0)


class KeepingTest(PublishTest):
    def test_keep_changes_while_it_runs(self):
        daemon = self.publishing(publish={"keep": 3})
        self.assert_ends(self.train(daemon.address, steps=1))
        for _ in range(5):
            self.psd("publish", "--server", daemon.address)
        self.assertEqual(self.numbers(daemon), [3, 4, 5])
        self.psd("set", "publish.keep=1", "--server", daemon.address)
        until("the others are removed", lambda: self.numbers(daemon) == [5])
        self.assertFalse(self.file_of(4).exists())
        self.assertIn("cannot change while the daemon runs", self.refused("set", "publish.as=bf16", "--server", daemon.address))

    def test_limit_too_small_for_two(self):
        daemon = self.publishing(limits__version_bytes=65536)
        self.assert_ends(self.train(daemon.address, steps=1))
        said = self.refused("publish", "--server", daemon.address)
        self.assertIn("limits.version_bytes (64.0 KiB) must admit three", said)
        self.psd("set", "limits.version_bytes=1073741824", "--server", daemon.address)
        self.assertIn("version 1", self.psd("publish", "--server", daemon.address))

    def test_without_durability_versions_end_with_the_daemon(self):
        daemon = self.publishing(durable=False)
        self.assert_ends(self.train(daemon.address, steps=1))
        self.psd("publish", "--server", daemon.address)
        address = daemon.addresses[0]
        self.assert_stops(daemon)
        again = self.publishing(durable=False, listen=(address,))
        self.assert_ends(self.train(again.address, steps=1))
        self.assertEqual(self.numbers(again), [])

    def test_kill_at_random_moments(self):
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        chance = random.Random(seed)
        known, newest, address = {}, 0, "tcp://127.0.0.1:0"
        for _ in range(6):
            daemon = self.publishing(listen=(address,), publish={"every_updates": 1, "keep": 20})
            address = daemon.address
            found = self.versions(daemon)["versions"]
            if newest:
                self.assertGreaterEqual(found[-1]["number"], newest)
            trainer = self.endless_trainer(daemon)
            wanted = newest + chance.randrange(1, 30)
            daemon.until_status("more versions", lambda status, wanted=wanted: status["publish"]["newest"] >= wanted)
            seen = self.versions(daemon)["versions"]
            newest = seen[-1]["number"]
            daemon.kill()
            trainer.kill()
            for number in [each["number"] for each in found + seen]:
                if not self.file_of(number).exists():
                    continue
                digest = hashlib.sha256(self.file_of(number).read_bytes()).hexdigest()
                self.assertEqual(known.setdefault(number, digest), digest)
        self.assertGreater(newest, 5)
        leftovers = [path.name for path in (self.folder / "saved" / "versions").iterdir()
                     if not path.name.startswith("version-") and path.name != "versions.json"]
        self.assertLessEqual(len(leftovers), 1)  # of the last kill: a start removes those of previous ones


class RefusalTest(PublishTest):
    def test_without_publish(self):
        daemon = self.daemon()
        for command in ("publish", "versions"):
            self.assertIn("its configuration has no `publish`", self.refused(command, "--server", daemon.address))
        self.assertEqual(json.loads(self.psd("versions", "--json", "--server", daemon.address)), None)

    def test_reload(self):
        path = self.write("psd.json", json.dumps({"policy": {"type": "locked"}, "publish": {"keep": 2}}))
        daemon = self.daemon("--config", path, policy=None, optimizer=None)
        path.write_text(json.dumps({"policy": {"type": "locked"}}), encoding="utf-8")
        self.assertIn("publish", self.refused("reload", "--server", daemon.address))
        path.write_text(json.dumps({"policy": {"type": "locked"}, "publish": {"keep": 3}}), encoding="utf-8")
        self.assertIn("publish.keep", self.psd("reload", "--server", daemon.address))

    def test_configurations(self):
        engine = '{"endpoints":["http://127.0.0.1:1"],"prefix":"/psd"}'
        several = ("--set", 'daemons=["tcp://a:1","tcp://b:1"]', "--index", "0")
        sync = 'policy={"type":"sync","round_timeout_ms":1000,"on_timeout":"proceed"}'
        cases = (
            (('publish={"from":"publishers"}', f"engine={engine}"), 'publish.from: "publishers" cannot be combined with `engine`'),
            (("publish={\"every_updates\":-1}",), "publish.every_updates"),
            (("publish={\"as\":\"f64\"}",), "publish.as"),
            (("publish={\"keep\":0}",), "publish.keep"),
            (("publish={\"evry\":1}",), "publish.evry"),
            ((several, "publish={}"), "publish: with several daemons requires a policy with rounds of the whole model, such as sync: policy is hogwild"),
            ((several, sync, "publish={}"), "publish.every_updates: must be at least 1 with several daemons"),
            ((several, sync, 'publish={"every_updates":1,"every_seconds":1}'), "publish.every_seconds: requires a single daemon"),
            ((several, sync, 'publish={"every_updates":1,"keep":3}'), "publish.keep: must be at least 4 with several daemons"),
            ((several, sync, 'publish={"every_updates":1}', f"engine={engine}"), "publish: with several daemons cannot be combined with `engine`"),
            ((several, 'publish={"from":"publishers"}'), 'publish.from: "publishers" requires a single daemon'),
            (("publish={}", "limits.version_leases=0"), "limits.version_leases"),
        )
        for settings, words in cases:
            with self.subTest(settings):
                flags = [part for setting in settings for part in (setting if isinstance(setting, tuple) else ("--set", setting))]
                self.assert_fails(self.start_psd("--listen", "tcp://127.0.0.1:0", *flags), words)

    def test_a_reader_may_not_publish(self):
        reader = self.make_token("dash", "reader")
        admin = self.make_token("ops", "admin")
        trainer = self.make_token("gpu", "trainer")
        daemon = self.publishing(auth={"tokens": str(self.folder / "tokens")})
        del trainer
        for token, command, allowed in ((reader, "versions", True), (reader, "publish", False), (admin, "versions", True)):
            path = self.write("token", token)
            path.chmod(0o600)
            done = self.run_psd(command, "--server", daemon.address, "--token-file", path)
            self.assertEqual(done.returncode == 0, allowed, done.stderr)
        self.assertIn("requires role admin", self.run_psd("publish", "--server", daemon.address, "--token-file",
                                                       self.write("token", reader)).stderr)

    def test_moves_to_a_daemon_that_does_not_publish(self):
        daemon, target = self.publishing(durable=False), self.daemon(policy="locked")
        self.assert_ends(self.train(daemon.address, steps=1))
        said = self.refused("move", "--server", daemon.address, "--to", target.address)
        self.assertIn("publish is absent here, and the previous daemon publishes versions: configure `publish` here", said)


if __name__ == "__main__":
    main()
