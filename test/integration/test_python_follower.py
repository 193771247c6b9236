"""psd.Follower: versions that real daemons publish, read by programs that do not train."""

import asyncio
import contextlib
import importlib.util
import os
import subprocess
import threading
import unittest
import unittest.mock

import ctrl_c
import cutter
import line_clients
import numpy as np
import processes

import psd

WIDE = psd.Model("wide", {"w": (700_001,), "scalar": (), "matrix": (3, 5)})  # several slices of a transfer
BRAIN_BITS = importlib.util.find_spec("ml_dtypes") is None  # bfloat16 is shown as uint16


def step(model, value):
    """A gradient that adds `value` to every element, with the learning rate 1."""
    gradient = model.zeros(float32=True)
    for place in model.places.values():
        gradient[place] = -value
    return gradient


class FollowerTest(line_clients.LineTest):
    def publishing(self, policy="locked", listen=None, folder="saved", **settings):
        """A daemon with `publish` that keeps its state in a folder of the test; None: in memory."""
        if folder is not None:
            settings["durability"] = {"type": "log", "path": str(self.folder / folder)}
        settings.setdefault("publish", {})
        return self.daemon(policy=policy, listen=listen or ("tcp://127.0.0.1:0",), optimizer='{"type":"sgd","lr":1.0}', **settings)

    def publish(self, daemon, *arguments):
        done = subprocess.run([processes.PSD, "publish", "--server", daemon.address, *arguments], capture_output=True, text=True,
                              timeout=processes.WAIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def follower(self, daemon, **options):
        follower = psd.Follower(daemon if isinstance(daemon, str) else daemon.address, on_event=lambda *_: None, **options)
        self.addCleanup(follower.close)
        return follower

    def pulled(self, client, model):
        values = model.zeros()
        client.pull(values)
        return {name: np.array(view) for name, view in model.views(values).items()}

    def assert_same(self, tensors, expected):
        self.assertEqual(set(tensors), set(expected))
        for name, values in expected.items():
            np.testing.assert_array_equal(tensors[name], values, name)
            self.assertEqual(tensors[name].shape, values.shape)

    def in_background(self, call, *arguments, **options):
        """Makes a call on a thread; what it returns waits for its outcome."""
        outcome = []

        def work():
            try:
                outcome.append(call(*arguments, **options))
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()

        def ended():
            thread.join(processes.WAIT_S)
            self.assertFalse(thread.is_alive(), "the call does not end")
            return outcome[0]

        return ended


class Reading(FollowerTest):
    def test_versions_have_the_values_that_a_pull_gives(self):
        for policy, moment in (("locked", "snapshot"), ("sync", "round")):
            with self.subTest(policy):
                daemon = self.publishing(policy, folder=None, publish={"every_updates": 1, "keep": 2})
                trainer, follower = self.joined(daemon, WIDE), self.follower(daemon)
                numbers = []
                for updates in range(1, 6):
                    trainer.push(step(WIDE, updates))
                    while follower.info is None or follower.info.step < updates:
                        numbers.append(follower.wait(timeout=processes.WAIT_S))
                    self.assert_same(follower.tensors(), self.pulled(trainer, WIDE))
                    self.assertEqual((follower.info.step, follower.info.moment), (updates, moment))
                self.assertEqual(numbers, sorted(set(numbers)))
                self.assertEqual(follower.version, numbers[-1])
                self.assertRegex(follower.info.created, r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
                self.assertGreater(follower.info.bytes, WIDE.size * 4)
                self.assertIn(follower.version, [version.number for version in follower.versions()])
                trainer.leave()

    def test_a_round_is_in_all_shards_or_in_none(self):
        # Each round adds 1 to every element, so a mixture of two moments has two values.
        model = psd.Model("even", {"w": (400_000,), "v": (1_000,)})
        groups = [{"match": "v", "policy": {"type": "sync"}, "optimizer": {"type": "sgd", "lr": 1.0}}]
        daemon = self.publishing("sync", folder=None, shards=16, groups=groups, publish={"every_updates": 1, "keep": 2})
        trainers = [self.joined(daemon, model, rank, 2) for rank in range(2)]
        stopped = threading.Event()

        def train(trainer):
            values, gradient = model.zeros(), step(model, 1)
            with contextlib.suppress(psd.Error):  # the other one has stopped
                while not stopped.is_set():
                    trainer.pull(values)
                    trainer.push(gradient)

        working = [threading.Thread(target=train, args=(trainer,), daemon=True) for trainer in trainers]
        for thread in working:
            thread.start()
        follower = self.follower(daemon)
        try:
            for _ in range(20):
                follower.wait(timeout=processes.WAIT_S)
                # On a machine that delays a trainer between its two groups, there may be no such instant in time.
                if follower.info.moment == "round":
                    values = np.concatenate([each.ravel() for each in follower.tensors().values()])
                    self.assertEqual(set(np.unique(values)), {follower.info.step})
                else:
                    self.assertEqual(len(np.unique(follower.tensors()["w"])), 1)
        finally:
            stopped.set()
            for trainer in trainers:
                trainer.close()  # ends a push that waits for the other one
            for thread in working:
                thread.join(processes.WAIT_S)

    def test_the_model_that_a_trainer_completes(self):
        # A trainer's optimizer and the order of its tensors replace an untrained model from a file.
        first = self.publishing(folder=None)
        reversed_order = psd.Model("wide", {"matrix": (3, 5), "scalar": (), "w": (700_001,)})
        self.joined(first, WIDE).leave()
        file = self.folder / "initial.safetensors"
        subprocess.run([processes.PSD, "export", "--server", first.address, file], check=True, timeout=processes.WAIT_S)
        daemon = self.daemon(policy="locked", optimizer=None, model={"file": str(file)}, publish={"every_updates": 1})
        trainer, follower = self.client(daemon, optimizer='{"type":"sgd","lr":1.0}'), self.follower(daemon)
        trainer.join(reversed_order, reversed_order.zeros(), 0, 1)
        trainer.push(step(reversed_order, 3))
        while follower.info is None or follower.info.step < 1:
            follower.wait(timeout=processes.WAIT_S)
        self.assertEqual(set(np.unique(follower.tensors()["w"])), {3})

    def test_a_version_by_its_number(self):
        daemon = self.publishing(folder=None, publish={"keep": 2})
        trainer, follower = self.joined(daemon, WIDE), self.follower(daemon)
        for value in range(1, 4):
            trainer.push(step(WIDE, value))
            self.publish(daemon)
        for number, value in ((3, 6), (2, 3), (2, 3)):
            self.assertEqual(follower.fetch(number), number)
            self.assertEqual((follower.version, set(np.unique(follower.tensors()["w"]))), (number, {value}))
        with self.assertRaisesRegex(psd.NotReady, "version 1"):
            follower.fetch(1)
        with self.assertRaisesRegex(psd.DeadlineExceeded, "version 4 was not"):
            follower.fetch(4, timeout=0.02)
        self.assertEqual((follower.version, follower.wait(timeout=processes.WAIT_S)), (2, 3))
        ended = self.in_background(follower.fetch, 4)
        self.publish(daemon)
        self.assertEqual(ended(), 4)
        for wrong in (0, "4"):
            with self.assertRaisesRegex((psd.InvalidArgument, TypeError), "number is .*; expected a whole number"):
                follower.fetch(wrong)

    def test_only_tables(self):
        daemon = self.publishing(folder=None, publish={})
        self.joined(daemon, psd.Model("rows", {}, [psd.Table("t", 4)])).leave()
        done = subprocess.run([processes.PSD, "publish", "--server", daemon.address], capture_output=True, text=True,
                              timeout=processes.WAIT_S, check=False)
        self.assertIn("the model has only embedding tables, which are not in published versions", done.stderr)

    def test_earlier_tensors_stay_as_they_are(self):
        daemon = self.publishing(folder=None, publish={"keep": 1})
        trainer, follower = self.joined(daemon, WIDE), self.follower(daemon)
        self.publish(daemon)
        follower.wait()
        first = follower.tensors()
        self.assertFalse(first["w"].flags.owndata)
        for array in first.values():
            with self.assertRaises(ValueError):
                array[...] = 1
            with self.assertRaises(ValueError):
                array.setflags(write=True)
        trainer.push(step(WIDE, 2))
        self.publish(daemon)
        self.assertEqual(follower.wait(), 2)
        self.assertEqual(set(np.unique(first["w"])), {0})
        self.assertEqual(set(np.unique(follower.tensors()["w"])), {2})
        follower.close()
        self.assertEqual(set(np.unique(follower.tensors()["matrix"])), {2})
        self.assertEqual(set(np.unique(first["matrix"])), {0})

    def test_dtypes(self):
        model = psd.Model("mixed", {"full": (3, 7), "brain": (5,), "half": (2, 3)}, dtypes={"brain": "bf16", "half": "f16"})
        values = {"full": np.arange(21, dtype=np.float32).reshape(3, 7), "brain": np.arange(5), "half": np.arange(6).reshape(2, 3)}
        bits = {"f32": np.float32, "f16": np.float16, "bf16": psd._dtypes._numpy_bfloat16()}
        for dtype in ("model", "f32", "bf16", "f16"):
            with self.subTest(dtype):
                daemon = self.publishing(folder=None, publish={"as": dtype})
                trainer = self.client(daemon)
                trainer.join(model, model.flatten(values), 0, 1)
                self.publish(daemon)
                follower = self.follower(daemon)
                follower.wait()
                for name, array in follower.tensors().items():
                    expected = model.dtypes[name] if dtype == "model" else dtype
                    self.assertEqual(array.dtype, bits[expected], name)
                    if not (BRAIN_BITS and expected == "bf16"):
                        np.testing.assert_array_equal(array.astype(np.float32), values[name], name)
                self.check_torch(follower, values)
                trainer.leave()

    def check_torch(self, follower, values):
        try:
            import torch
        except ImportError:
            return
        arrays = follower.tensors()
        for name, tensor in follower.torch_tensors().items():
            self.assertEqual(tuple(tensor.shape), values[name].shape)
            self.assertEqual(tensor.data_ptr(), arrays[name].ctypes.data)
            self.assertTrue(torch.equal(tensor.float(), torch.tensor(values[name], dtype=torch.float32)))

    def test_a_daemon_with_small_slices(self):
        daemon = self.publishing(folder=None, limits__slice_bytes=16384)
        trainer = self.joined(daemon, WIDE)
        self.publish(daemon)
        follower = self.follower(daemon)
        follower.wait()
        self.assert_same(follower.tensors(), self.pulled(trainer, WIDE))

    def test_corrupted_files_are_refused(self):
        daemon = self.publishing()
        trainer = self.joined(daemon, WIDE)
        self.publish(daemon)
        path = self.folder / "saved" / "versions" / "version-0000000001.safetensors"
        with open(path, "r+b") as file:
            file.seek(-2, os.SEEK_END)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 4]))
        follower = self.follower(daemon)
        for _ in range(2):
            with self.assertRaisesRegex(psd.InputOutputError, "^tcp://.*: version 1 is damaged: the checksum of tensor 'matrix' is [0-9a-f]{8}; "
                                                              "its header says [0-9a-f]{8}$"):
                follower.wait()
        self.assertIsNone(follower.version)
        self.publish(daemon)
        self.assertEqual(follower.wait(), 2)
        self.assert_same(follower.tensors(), self.pulled(trainer, WIDE))


class Waiting(FollowerTest):
    def test_a_reader_that_waits_gets_each_version(self):
        daemon = self.publishing(folder=None)
        self.joined(daemon)
        follower = self.follower(daemon)
        for number in range(1, 6):
            ended = self.in_background(follower.wait)
            self.publish(daemon)
            self.assertEqual(ended(), number)
        self.assertEqual(follower.wait(at_least=3), 5)  # held already
        ended = self.in_background(follower.wait, at_least=7)
        self.publish(daemon)
        self.publish(daemon)
        self.assertEqual(ended(), 7)

    def test_timeouts(self):
        daemon = self.publishing(folder=None)
        self.joined(daemon)
        follower = self.follower(daemon)
        for _ in range(3):
            with self.assertRaisesRegex(TimeoutError, "^tcp://.*: version 1 was not published within 20(.0)? ms"):
                follower.wait(timeout=0.02)
        with self.assertRaises(psd.DeadlineExceeded):
            follower.wait(timeout=0)
        self.publish(daemon)
        self.assertEqual(follower.wait(timeout=processes.WAIT_S), 1)
        with self.assertRaisesRegex(psd.DeadlineExceeded, "version 9 was not"):
            follower.wait(at_least=9, timeout=0.02)
        for wrong in (-1, float("nan"), float("inf")):
            with self.assertRaisesRegex(psd.InvalidArgument, "timeout is .*; expected a number of seconds"):
                follower.wait(timeout=wrong)

    def test_ctrl_c_ends_a_wait(self):
        daemon = self.publishing(folder=None)
        self.joined(daemon)
        follower = self.follower(daemon)
        ctrl_c.check(self, "wait()", follower.wait, lambda: None)
        self.publish(daemon)
        self.assertEqual(follower.wait(), 1)

    def test_close_ends_a_wait(self):
        daemon = self.publishing(folder=None)
        self.joined(daemon)
        follower = self.follower(daemon)
        ended = self.in_background(follower.wait)
        processes.until("it waits", follower._waiting.locked)
        follower.close()
        self.assertIsInstance(ended(), (psd.Interrupted, psd.InvalidArgument))  # it may not have begun
        for call in (follower.wait, follower.versions):
            with self.assertRaisesRegex(psd.InvalidArgument, "this follower is closed"):
                call()

    def test_asyncio(self):
        daemon = self.publishing(folder=None)
        self.joined(daemon)
        follower = self.follower(daemon)

        async def work():
            with self.assertRaises(psd.DeadlineExceeded):
                await follower.next(timeout=0.02)
            # A version that comes right after a cancellation is not lost.
            for number in range(1, 4):
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(follower.next(), 0.02)
                await asyncio.to_thread(self.publish, daemon)
                self.assertEqual(await follower.next(), number)
            waits = asyncio.ensure_future(follower.next())
            await asyncio.to_thread(self.publish, daemon)
            self.assertEqual(await waits, 4)

        asyncio.run(work())

    def test_threads_share_a_follower(self):
        daemon = self.publishing(folder=None)
        self.joined(daemon)
        follower = self.follower(daemon)
        ended = [self.in_background(follower.wait, at_least=1) for _ in range(4)]
        self.assertEqual(follower.versions(), [])
        self.publish(daemon)
        self.assertEqual([end() for end in ended], [1] * 4)


class Faults(FollowerTest):
    def test_a_daemon_that_dies_and_comes_back(self):
        address = self.unix_address()
        daemon = self.publishing(listen=(address,), publish={"keep": 8})
        trainer, follower, number = self.joined(daemon, WIDE, on_event=lambda *_: None), self.follower(daemon), 0
        for _ in range(3):
            trainer.push(step(WIDE, 1))
            self.publish(daemon)
            number += 1
            self.assertEqual(follower.wait(), number)
            before, info = follower.tensors(), follower.info
            ended = self.in_background(follower.wait, timeout=processes.WAIT_S)
            daemon.kill()
            daemon = self.publishing(listen=(address,), publish={"keep": 8})
            other = self.follower(daemon)
            self.assertEqual(other.wait(), number)
            self.assert_same(other.tensors(), before)
            self.assertEqual((other.info.history, other.info.created), (info.history, info.created))
            self.publish(daemon)
            number += 1
            self.assertEqual(ended(), number)
            self.assertEqual([version.number for version in follower.versions()], list(range(1, number + 1)))
        trainer.leave()

    def test_versions_that_end_with_their_daemon(self):
        address = self.unix_address()
        daemon = self.publishing(listen=(address,), folder=None)
        self.joined(daemon)
        follower = self.follower(daemon)
        for _ in range(3):
            self.publish(daemon)
        self.assertEqual(follower.wait(), 3)
        held = follower.tensors()
        daemon.kill()
        daemon = self.publishing(listen=(address,), folder=None)
        self.joined(daemon)
        ended = self.in_background(follower.wait)
        self.publish(daemon)
        error = ended()
        self.assertIsInstance(error, psd.ModelMismatch)
        self.assertRegex(str(error), "^unix://.*: the daemon has lost its versions: history [0-9a-f]{16} is now [0-9a-f]{16}, whose numbers mean "
                                     "other bytes; the next call continues with these$")
        self.assertEqual(follower.version, 3)
        self.assert_same(follower.tensors(), held)
        self.assertEqual(follower.wait(), 1)

    def test_a_connection_that_breaks_while_a_version_is_read(self):
        daemon = self.publishing(folder=None)
        trainer = self.joined(daemon, WIDE)
        trainer.push(step(WIDE, 5))
        self.publish(daemon)
        relay = cutter.Cutter(self, daemon.address, 500_000, 1_200_000, 1_500_000)
        follower = self.follower(relay.address)
        self.assertEqual(follower.wait(), 1)
        self.assert_same(follower.tensors(), self.pulled(trainer, WIDE))
        self.assertEqual(relay.connections, 4)
        self.assertEqual(daemon.status()["publish"]["leases"], [])

    def test_the_time_of_a_wait_ends_while_the_daemon_is_away(self):
        address = self.unix_address()
        daemon = self.publishing(folder=None, listen=(address,))
        self.joined(daemon)
        follower = self.follower(daemon, retry_timeout=processes.WAIT_S)
        daemon.kill()
        for _ in range(2):
            with self.assertRaisesRegex(psd.DeadlineExceeded, "within 50.0 ms: .*(reconnect|broke)"):
                follower.wait(timeout=0.05)

        async def awaits():
            pieces = threading.Semaphore(0)
            obtain = follower._obtain

            def counted(*arguments):
                pieces.release()
                return obtain(*arguments)
            with unittest.mock.patch("psd._versions._PIECE", 0.05), unittest.mock.patch.object(follower, "_obtain", counted):
                following = asyncio.ensure_future(follower.next())
                for _ in range(3):  # the daemon is away for longer than a piece of the wait
                    self.assertTrue(await asyncio.to_thread(pieces.acquire, timeout=processes.WAIT_S))
                again = await asyncio.to_thread(lambda: self.publishing(folder=None, listen=(address,)))
                await asyncio.to_thread(lambda: (self.joined(again), self.publish(again)))
                return await asyncio.wait_for(following, processes.WAIT_S)
        self.assertEqual(asyncio.run(awaits()), 1)

    def test_a_daemon_that_does_not_come_back(self):
        daemon = self.publishing(folder=None, listen=(self.unix_address(),))
        self.joined(daemon)
        follower = self.follower(daemon, retry_timeout=0.2)
        daemon.kill()
        with self.assertRaisesRegex(psd.Unavailable, "could not reconnect within"):
            follower.wait()
        with self.assertRaisesRegex(psd.Unavailable, "could not reconnect within"):
            follower.wait(timeout=0.3)
        with self.assertRaisesRegex(psd.Unavailable, "no psd daemon answered within"):
            psd.Follower(daemon.address, connect_timeout=0.1)


class Leases(FollowerTest):
    def leases(self, daemon):
        leases = daemon.status()["publish"]["leases"]
        return [lease["version"] for lease in leases if lease["reader"] != "an earlier reader"]

    def numbers(self, follower):
        return [version.number for version in follower.versions()]

    def test_a_pinned_version_stays(self):
        daemon = self.publishing(publish={"keep": 1})
        self.joined(daemon)
        holder, other = self.follower(daemon), self.follower(daemon)
        self.publish(daemon)
        holder.wait()
        with holder.pin() as pinned:
            self.assertEqual(pinned.number, 1)
            for _ in range(5):
                self.publish(daemon)
                other.wait()
                if other.version == 2:
                    behind = self.follower(daemon)
                    behind.wait()
            self.assertEqual(self.numbers(holder), [1, 6])
            self.assertEqual(self.leases(daemon), [1])
            with self.assertRaisesRegex(psd.NotReady, "^tcp://.*: version 2 was removed; the oldest is 1 and the newest 6$"), behind.pin():
                pass
            holder.wait()
            self.assertEqual(self.numbers(holder), [1, 6])
        self.assertEqual(self.leases(daemon), [])
        self.publish(daemon)
        processes.until("version 1 is removed", lambda: self.numbers(holder) == [7])

    def test_pins_are_renewed_and_outlast_the_daemon(self):
        address = self.unix_address()
        daemon = self.publishing(listen=(address,), publish={"keep": 1})
        self.joined(daemon).leave()
        follower = self.follower(daemon)
        self.publish(daemon)
        follower.wait()
        with follower.pin(seconds=3):
            self.publish(daemon)
            (lease,) = daemon.status()["publish"]["leases"]
            self.assertIn("psd for Python ", lease["reader"])
            left = lease["left_seconds"]
            daemon.until_status("the lease is renewed", lambda status: status["publish"]["leases"][0]["left_seconds"] > left)
            daemon.kill()
            daemon = self.publishing(listen=(address,), publish={"keep": 1})
            daemon.until_status("the lease is back", lambda status: status["publish"]["leases"])
            self.publish(daemon)
            self.assertEqual(self.numbers(follower), [1, 3])
        # An error within the block ends the lease, too.
        follower.wait()
        with self.assertRaises(ZeroDivisionError), follower.pin():
            self.assertEqual(self.leases(daemon), [3])
            raise ZeroDivisionError
        self.assertEqual(self.leases(daemon), [])

    def test_the_end_of_a_follower_ends_its_pins(self):
        daemon = self.publishing(folder=None)
        self.joined(daemon)
        self.publish(daemon)
        follower = self.follower(daemon)
        follower.wait()
        pin = follower.pin()
        pin.__enter__()
        self.assertEqual(self.leases(daemon), [1])
        follower.close()
        self.assertEqual(self.leases(daemon), [])

    def test_a_pinned_version_that_is_lost(self):
        address, daemons = self.unix_address(), []
        for folder in ("first", "second"):
            daemons.append(self.publishing(listen=(address,), folder=folder))
            trainer = self.joined(daemons[-1])
            self.publish(daemons[-1])
            trainer.leave()
            if folder == "first":
                daemons[-1].kill()
        follower = self.follower(daemons[1])
        follower.wait()
        with self.assertRaisesRegex(psd.NotReady, "^unix://.*: the daemon has lost version 1: it has started another history$"), follower.pin():
            daemons[1].kill()
            first = self.publishing(listen=(address,), folder="first")
            with self.assertRaises(psd.ModelMismatch):
                follower.versions()
        self.assertEqual(self.leases(first), [])


class Refusals(FollowerTest):
    def test_without_publish(self):
        daemon = self.daemon()
        self.joined(daemon)
        follower = self.follower(daemon)
        for call in (follower.wait, follower.versions):
            with self.assertRaisesRegex(psd.InvalidArgument, "^tcp://.*: this daemon publishes no versions: its configuration has no `publish`$"):
                call()

    def test_credentials(self):
        path = self.make_token_file("dash", "reader")
        daemon = self.publishing(folder=None, auth={"tokens": str(self.folder / "tokens")}, listen=("tcp://127.0.0.1:0",))
        for options in ({}, {"token": "psd_" + "0" * 64}):
            with self.assertRaises(psd.Unauthenticated):
                psd.Follower(daemon.address, **options)
        for options in ({"token": path.read_text(encoding="utf-8").strip()}, {"token_file": path}):
            self.assertEqual(self.follower(daemon, **options).versions(), [])

    def test_wrong_use(self):
        daemon = self.publishing(folder=None)
        self.joined(daemon)
        self.publish(daemon)
        follower = self.follower(daemon)
        for call in (follower.tensors, follower.torch_tensors, follower.pin().__enter__):
            with self.assertRaisesRegex(psd.InvalidArgument, r"\(\) before the first version: call wait\(\) first"):
                call()
        follower.wait()
        for seconds in (0, 601):
            with self.assertRaisesRegex(psd.InvalidArgument, f"seconds is {seconds}; expected a whole number from 1 to 600"):
                follower.pin(seconds).__enter__()
        with self.assertRaisesRegex(TypeError, "psd.Follower has no option 'tokn'; did you mean 'token'?"):
            psd.Follower(daemon.address, tokn="x")
        with self.assertRaisesRegex(TypeError, "at_least is '3'; expected a whole number"):
            follower.wait(at_least="3")
        with self.assertRaisesRegex(psd.InvalidArgument, "no server is given"), unittest.mock.patch.dict(os.environ, clear=True):
            psd.Follower()
        with self.assertRaises(TypeError):
            __import__("pickle").dumps(follower)
        self.assertEqual(repr(follower), f"<psd.Follower of {daemon.address}, version 1>")


if __name__ == "__main__":
    processes.main()
