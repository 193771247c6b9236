"""psd follow and psd export --published: a file with the newest published version, whatever dies meanwhile; hooks."""

import hashlib
import json
import os
import pathlib
import random
import signal
import struct

from processes import ProcessTest, main, until
from safetensors_file import safetensors


def read_header(path):
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    return json.loads(data[8:8 + size])


def version_in(path):
    return int(read_header(path)["__metadata__"]["psd.version"])


class FollowTest(ProcessTest):
    def setUp(self):
        self.into = None  # set by follow()

    def publishing(self, *arguments, durable=True, **settings):
        if durable:
            settings.setdefault("durability", {"type": "log", "path": str(self.folder / "saved")})
        settings.setdefault("publish", {"keep": 1000})
        return self.daemon(*arguments, policy="locked", **settings)

    def follow(self, daemon, *arguments):
        self.into = self.folder / "into"
        return self.start_psd("follow", "--server", daemon.address, "--into", self.into, *arguments)

    @property
    def file(self):
        return self.into / "model.safetensors"

    def publish(self, daemon):
        done = self.run_psd("publish", "--server", daemon.address)
        self.assertEqual(done.returncode, 0, done.stderr)
        return int(done.stdout.split(": version ")[1].split(",")[0])

    def until_has(self, version):
        until(f"it has version {version}", lambda: self.file.exists() and version_in(self.file) >= version)

    def saved(self, number):
        return self.folder / "saved" / "versions" / f"version-{number:010}.safetensors"


class FileTest(FollowTest):
    def test_each_version(self):
        daemon = self.publishing()
        follower = self.follow(daemon)
        self.assert_ends(self.train(daemon.address, steps=2))
        for number in (1, 2, 3):
            self.assertEqual(self.publish(daemon), number)
            self.until_has(number)
            self.assertEqual(self.file.read_bytes(), self.saved(number).read_bytes())
        until("it says so", lambda: "\nversion 3: " in "\n" + follower.out)
        until("its lease is released", lambda: daemon.status()["publish"]["leases"] == [])
        self.assertEqual([path.name for path in self.into.iterdir() if path.name.startswith("model")], ["model.safetensors"])

    def test_once_and_export(self):
        daemon = self.publishing()
        self.assert_ends(self.train(daemon.address, steps=2))
        self.publish(daemon)
        self.publish(daemon)
        self.assert_ends(self.follow(daemon, "--once"))
        self.assertEqual(version_in(self.file), 2)
        for number, wanted in ((1, 1), (0, 2)):
            done = self.run_psd("export", "--server", daemon.address, "--published", number, "out.safetensors")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"wrote version {wanted} of ", done.stdout)
            self.assertEqual((self.folder / "out.safetensors").read_bytes(), self.saved(wanted).read_bytes())
        done = self.run_psd("export", "--server", daemon.address, "--published", 7, "out.safetensors")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("version 7 does not exist yet; the newest is 2", done.stderr)

    def test_small_slices(self):
        daemon = self.publishing(limits__slice_bytes=4096, limits__message_bytes=65536)
        self.assert_ends(self.train(daemon.address, steps=1))
        self.publish(daemon)
        self.assert_ends(self.follow(daemon, "--once"))
        self.assertEqual(self.file.read_bytes(), self.saved(1).read_bytes())

    def test_a_follower_continues_with_its_file(self):
        daemon = self.publishing()
        self.assert_ends(self.train(daemon.address, steps=1))
        self.publish(daemon)
        self.assert_ends(self.follow(daemon, "--once"))
        written = os.stat(self.file).st_mtime_ns
        again = self.follow(daemon)
        until("it knows its file", lambda: "version 1 is in" in again.out)
        self.publish(daemon)
        self.until_has(2)
        self.assertNotIn("version 1:", again.out)
        self.assertGreater(os.stat(self.file).st_mtime_ns, written)

    def test_once_with_the_newest_version_ends(self):
        daemon = self.publishing()
        self.assert_ends(self.train(daemon.address, steps=2))
        self.publish(daemon)
        for time in range(2):
            done = self.run_psd("follow", "--server", daemon.address, "--into", self.folder / "into", "--once", "--exec", f"touch {self.folder}/ran{time}")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue((self.folder / f"ran{time}").exists())
        self.assertIn("version 1 is in ", done.stdout)

    def test_two_followers_of_one_folder(self):
        daemon = self.publishing()
        self.assert_ends(self.train(daemon.address, steps=1))
        self.publish(daemon)
        self.follow(daemon)
        self.until_has(1)
        self.assert_fails(self.follow(daemon), "is in use by another psd follow")

    def test_a_map_of_tensors(self):
        daemon = self.publishing()
        self.assert_ends(self.train(daemon.address, steps=1))
        self.publish(daemon)
        self.assert_ends(self.follow(daemon, "--once"))
        whole = safetensors(self.file)
        first, *others = whole
        names = self.write("names.json", json.dumps({"tensors": {"twice": [first, first]}}))
        again = self.follow(daemon, "--map", names)
        until("it has the mapped version", lambda: "psd.map" in read_header(self.file)["__metadata__"])
        self.assertIn("was written with no map; it will be replaced", again.err)
        again.kill()
        mapped = safetensors(self.file)
        self.assertEqual(mapped, {"twice": ([2 * whole[first][0][0], *whole[first][0][1:]], 2 * whole[first][1]), **{name: whole[name] for name in others}})
        self.assertEqual({key: value for key, value in read_header(self.file)["__metadata__"].items() if key not in ("psd.map", "psd.crc32c")},
                         {key: value for key, value in read_header(self.saved(1))["__metadata__"].items() if key != "psd.crc32c"})
        again = self.follow(daemon, "--map", names)
        until("it knows its file", lambda: "version 1 is in" in again.out)
        self.assert_ends(self.start_psd("export", "--server", daemon.address, "--published", 1, "--map", names, "out.safetensors"))
        self.assertEqual((self.folder / "out.safetensors").read_bytes(), self.file.read_bytes())

    def test_a_damaged_version_is_not_written(self):
        daemon = self.publishing()
        self.assert_ends(self.train(daemon.address, steps=1))
        self.publish(daemon)
        with self.saved(1).open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))
        follower = self.follow(daemon)
        until("it complains", lambda: "version 1 is damaged: the checksum of tensor" in follower.err)
        self.assertFalse(self.file.exists())
        self.publish(daemon)
        self.until_has(2)

    def test_a_daemon_without_its_versions(self):
        daemon = self.publishing(durable=False)
        self.assert_ends(self.train(daemon.address, steps=1))
        self.publish(daemon)
        self.publish(daemon)
        follower = self.follow(daemon)
        self.until_has(2)
        daemon.kill()
        again = self.publishing(durable=False, listen=(daemon.address,))
        self.assert_ends(self.train(again.address, steps=1))
        self.publish(again)
        until("it has the other history", lambda: version_in(self.file) == 1)
        self.assertIn("has lost the versions of history", follower.err)

    def test_a_frozen_daemon_is_lost(self):
        daemon = self.publishing()
        self.assert_ends(self.train(daemon.address, steps=1))
        self.publish(daemon)
        follower = self.follow(daemon)
        self.until_has(1)
        daemon.signal(signal.SIGSTOP)
        until("it complains", lambda: "no answer within" in follower.err)
        daemon.signal(signal.SIGCONT)
        self.publish(daemon)
        self.until_has(2)

    def test_refusals(self):
        daemon = self.daemon()
        self.assert_fails(self.follow(daemon), "its configuration has no `publish`")
        self.assert_fails(self.start_psd("follow", "--server", daemon.address, "--into", "/proc/nowhere"), "/proc/nowhere")
        self.assert_fails(self.follow(daemon, "--exec-timeout", "never"), "--exec-timeout")
        self.assert_fails(self.start_psd("export", "--published", 1, "checkpoint", "--to", "file"), "--published requires --server")
        self.assert_fails(self.start_psd("export", "--server", daemon.address, "--published", "one", "file"), "--published")

    def test_kill_at_random_moments(self):
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        chance = random.Random(seed)
        address, newest, known = "tcp://127.0.0.1:0", 0, {}
        daemon = self.publishing(listen=(address,), publish={"every_updates": 1, "keep": 50})
        address = daemon.address
        trainer, follower = self.endless_trainer(daemon), self.follow(daemon)
        for _ in range(8):
            self.until_has(newest + chance.randrange(1, 8))
            whom = chance.choice(("daemon", "follower", "both"))
            if whom != "follower":
                daemon.kill()
                trainer.kill()
            if whom != "daemon":
                follower.kill()
            number, digest = version_in(self.file), hashlib.sha256(self.file.read_bytes()).hexdigest()
            self.assertGreaterEqual(number, newest)
            newest = number
            self.assertEqual(known.setdefault(number, digest), digest)
            if self.saved(number).exists():
                self.assertEqual(hashlib.sha256(self.saved(number).read_bytes()).hexdigest(), digest)
            if whom != "follower":
                daemon = self.publishing(listen=(address,), publish={"every_updates": 1, "keep": 50})
                trainer = self.endless_trainer(daemon)
            if whom != "daemon":
                follower = self.follow(daemon)
        self.until_has(newest + 1)
        unfinished = [path.name for path in self.into.iterdir() if ".tmp." in path.name]
        self.assertLessEqual(set(unfinished), {f"model.safetensors.tmp.{follower.pid}"})


class HookTest(FollowTest):
    def test_runs_after_each_version(self):
        daemon = self.publishing()
        self.assert_ends(self.train(daemon.address, steps=1))
        self.publish(daemon)
        said = self.folder / "said"
        self.follow(daemon, "--exec", f'echo "$PSD_VERSION $PSD_STEP $PSD_FILE" >> {said}')
        until("the hook has run", lambda: said.exists() and said.read_text(encoding="utf-8").endswith("\n"))
        self.assertEqual(said.read_text(encoding="utf-8"), f"1 1 {self.file}\n")
        self.publish(daemon)
        until("it has run again", lambda: said.read_text(encoding="utf-8").count("\n") == 2)

    def test_one_that_fails(self):
        daemon = self.publishing()
        self.assert_ends(self.train(daemon.address, steps=1))
        self.publish(daemon)
        follower = self.follow(daemon, "--exec", "exit 3")
        until("it complains", lambda: "version 1: hook 'exit 3': exit status 3" in follower.err)
        self.publish(daemon)
        until("it continues", lambda: "version 2: hook 'exit 3': exit status 3" in follower.err)
        self.assert_fails(self.start_psd("follow", "--server", daemon.address, "--into", self.folder / "other", "--once", "--exec",
                                         "kill -9 $$"), "ended by signal 9")

    def test_one_that_hangs(self):
        daemon = self.publishing()
        self.assert_ends(self.train(daemon.address, steps=1))
        self.publish(daemon)
        child = self.folder / "child"
        follower = self.follow(daemon, "--exec-timeout", 5, "--exec", f"tail -f /dev/null & echo $! > {child}; wait")
        until("it is killed", lambda: "killed after 5" in follower.err)
        pid = int(child.read_text(encoding="utf-8"))
        state = pathlib.Path(f"/proc/{pid}/stat")
        until("with its child", lambda: not state.exists() or state.read_text(encoding="utf-8").split()[2] == "Z")
        self.publish(daemon)
        self.until_has(2)


if __name__ == "__main__":
    main()
