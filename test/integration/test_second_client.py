"""A trainer that shares no code with psd speaks the protocol as described in docs/reference/protocol.md."""

import asyncio
import importlib.util
import json
import re
import unittest

import processes

HAVE_CAPNP = importlib.util.find_spec("capnp") is not None
if HAVE_CAPNP:
    import capnp
    import numpy as np
    from second_client import Refused, SecondClient, checked, signature


@unittest.skipUnless(HAVE_CAPNP, "no pycapnp (scripts/setup --tests brings it)")
class SecondClientTest(processes.ProcessTest):
    def run_async(self, work):
        asyncio.run(capnp.run(work))

    def test_the_signature_is_the_pages(self):
        page = (processes.REPO / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")
        dense, with_table = (int(value, 16) for value in re.findall(r"signature\s+`0x([0-9a-f]{16})`", page))
        tensors = [("w", (2, 3)), ("b", (3,))]
        self.assertEqual(signature(tensors), dense)
        self.assertEqual(signature(tensors, [("item", 4, "uniform", 0.5, 7)]), with_table)

    def test_fits_a_line_on_each_transport(self):
        async def fit(address):
            rng = np.random.default_rng(1)
            client = SecondClient(address, {"weight": np.zeros((64, 1)), "bias": np.full(1, 5.0)})
            await client.join()
            await client.pull()
            self.assertEqual(client.tensor("bias")[0], 5)
            for _ in range(150):
                await client.pull()
                x = rng.normal(size=(32, 64))
                error = x @ client.tensor("weight") + client.tensor("bias") - (x.sum(1, keepdims=True) + 2)
                outcomes = await client.push({"weight": x.T @ error / 32, "bias": error.mean(0)}, samples=32)
                self.assertEqual(set(outcomes.values()), {"applied"})
            await client.pull()
            await client.leave()
            self.assertLess(np.abs(client.tensor("weight") - 1).max(), 0.01)

        for policy, listen in (("hogwild", self.unix_address()), ("locked", "tcp://127.0.0.1:0")):
            with self.subTest(policy):
                daemon = self.daemon(listen=(listen,), policy=policy, optimizer='{"type":"sgd","lr":0.2}')
                self.run_async(fit(daemon.address))
                self.assertEqual(daemon.status()["trainers"], [])
                self.assertIn("serving model 'second'", daemon.err)

    def test_rows_of_tables(self):
        async def rows(address):
            client = SecondClient(address, {"bias": np.zeros(1)}, [("item", 4, "zero", 0.0, 0), ("user", 2, "uniform", 0.1, 7)])
            await client.join()
            wanted = [(0, 5), (0, 2**63), (1, 2**64 - 1), (1, 3), (0, 0)]
            before = await client.pull(wanted)
            self.assertTrue(np.all(before[0] == 0) and np.all(np.abs(before[2]) <= 0.1) and np.any(before[2] != 0))
            await client.push({"bias": [-1]}, rows={row: -np.ones(len(value)) for row, value in zip(wanted, before)})
            after = await client.pull(wanted)
            for one, other in zip(before, after):
                np.testing.assert_array_equal(one + 1, other)
            self.assertEqual(client.tensor("bias")[0], 1)

        self.run_async(rows(self.daemon(policy="locked", optimizer='{"type":"sgd","lr":1.0}').address))

    def test_buffers_in_slices(self):
        async def buffers(address):
            client = SecondClient(address, {"w": np.zeros(3)})
            await client.join()
            session = client.connection.session
            header = json.dumps({"mean": {"dtype": "F32", "shape": [2048], "data_offsets": [0, 8192]}}).encode()
            file = len(header).to_bytes(8, "little") + header + bytes(range(256)) * 32

            async def send(offset, end, size=None, to=session):
                checked((await to.setBuffers(size or len(file), offset, file[offset:end])).status)

            self.assertEqual(checked(await session.buffers(0, 0)).slice.size, 0)
            await send(0, 4000)
            for wrong in ((4001, 5000), (4000, 4000), (4000, 5000, 5001), (4000, 5000, 4999)):
                with self.assertRaisesRegex(Refused, "badSlice"):
                    await send(*wrong)
            _, login = await client.log_in()
            further = checked(await login.training.attach(client.rank, client.incarnation, client.connection.attachment)).session
            with self.assertRaisesRegex(Refused, "the connection that joined"):
                await send(0, 4000, to=further)
            await send(4000, len(file))
            read, number = b"", 0
            while len(read) < len(file):
                answer = checked(await session.buffers(number, len(read))).slice
                self.assertEqual(answer.size, len(file))
                self.assertLessEqual(len(answer.bytes), 4096)
                read, number = read + answer.bytes, answer.set
            self.assertEqual(read, file)
            file = file[:-1] + b"!"
            await send(0, len(file))
            with self.assertRaisesRegex(Refused, "notReady"):
                checked(await session.buffers(number, 4096))
            with self.assertRaisesRegex(Refused, "badSlice"):
                checked(await session.buffers(0, len(file) + 1))

        self.run_async(buffers(self.daemon(policy="locked", limits__slice_bytes=4096).address))

    def test_after_kill_9_of_the_daemon_each_push_is_applied_once(self):
        def start():
            return self.daemon(listen=(self.unix_address(),), policy="locked", optimizer='{"type":"sgd","lr":1.0}',
                               durability={"type": "log", "path": str(self.folder / "saved")}, limits__slice_bytes=4096)

        async def train():
            daemon = start()
            client = SecondClient(daemon.address, {"w": np.zeros(10_000)})
            await client.join()
            for step in range(1, 31):
                await client.pull()
                push = asyncio.ensure_future(client.push({"w": -np.ones(10_000)}))
                if step % 6 == 0:
                    for _ in range(step // 6 - 1):  # more and more of it is in flight
                        await asyncio.sleep(0)
                    daemon.kill()
                    daemon = start()
                outcomes = await push
                self.assertEqual(set(outcomes.values()), {"applied"})
            await client.pull()
            np.testing.assert_array_equal(client.tensor("w"), np.full(10_000, 30.0))
            self.assertEqual(client.joins, 6)
            await client.leave()

        self.run_async(train())

    def test_a_daemon_that_restarts_without_a_model_is_initialized_again(self):
        async def train():
            daemon = self.daemon(listen=(self.unix_address(),), policy="locked", optimizer='{"type":"sgd","lr":1.0}')
            client = SecondClient(daemon.address, {"w": np.zeros(3)})
            await client.join()
            await client.pull()
            await client.push({"w": -np.ones(3)})
            await client.pull()
            daemon.kill()
            self.daemon(listen=(self.unix_address(),), policy="locked", optimizer='{"type":"sgd","lr":1.0}')
            await client.pull()
            np.testing.assert_array_equal(client.tensor("w"), np.ones(3))

        self.run_async(train())

    def test_refusals_are_the_pages(self):
        async def refused(address):
            client = SecondClient(address, {"w": np.zeros(3)})
            await client.join()
            for code, other in (("modelMismatch", SecondClient(address, {"v": np.zeros(3)}, rank=0)),
                                ("rankTaken", SecondClient(address, {"w": np.zeros(3)}))):
                with self.assertRaises(Refused) as raised:
                    await other.join()
                self.assertEqual(raised.exception.code, code)
            await client.pull()
            with self.assertRaises(Refused) as raised:
                await client.push({"w": [0, np.nan, 0]})
            self.assertEqual(raised.exception.code, "nonFinite")
            with self.assertRaises(Refused) as raised:
                checked_model = client.model()
                client.model = lambda: {**checked_model, "signature": 1}
                client.connection = None
                await client.join()
            self.assertEqual(raised.exception.code, "invalidArgument")

        self.run_async(refused(self.daemon().address))


if __name__ == "__main__":
    processes.main()
