"""Peers that request large answers and read none: the daemon's memory for them stays within its limits, and others are
served."""

import asyncio
import importlib.util
import json
import socket
import unittest
import urllib.parse
import urllib.request

import processes
from processes import WAIT_S, until

HAVE_CAPNP = importlib.util.find_spec("capnp") is not None
if HAVE_CAPNP:
    import capnp
    from second_client import SecondClient, schema

MIB = 1 << 20
TENSORS = 20_000  # whose description takes 1.7 MB
SHARDS = 40_000  # whose status takes 4 MB or more, which no socket buffers
LIMITS = {"all_outgoing_bytes": 16 * MIB, "outgoing_bytes": 8 * MIB, "in_flight_bytes": 64 * MIB, "staged_bytes": 64 * MIB,
          "snapshot_bytes": 64 * MIB, "write_timeout_ms": 600_000}
# Beside all_outgoing_bytes: 192 KiB per connection, and buffers that two loops and the allocator keep.
SLACK_BYTES = 96 * MIB
HEARD_BYTES = 4000  # of its answers that a deaf peer reads: those of its login
ROW_VALUES = 4096


def resident(daemon):
    with open(f"/proc/{daemon.pid}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@unittest.skipUnless(HAVE_CAPNP, "no pycapnp (scripts/setup --tests brings it)")
@unittest.skipIf(processes.SANITIZED, "memory means little with a sanitizer")
class HogsTest(processes.ProcessTest):
    def large_daemon(self, *arguments, tensors, shards):
        """A daemon whose model has many tensors and shards, and is not initialized."""
        tensors = [{"name": f"layer_{i:06d}_weight_of_some_length", "shape": [1]} for i in range(tensors)]
        self.write("model.json", json.dumps({"model": {"name": "second", "tensors": tensors}}))
        return self.daemon("--config", str(self.folder / "model.json"), *arguments, limits=LIMITS, shards=shards, threads=2)

    async def deaf(self, port):
        """A login over a connection on which little more than its answer is read."""
        async def relay(reader, writer):
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.setblocking(False)
            await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
            from_daemon, to_daemon = await asyncio.open_connection(sock=raw, limit=2048)

            async def up():
                while piece := await reader.read(65536):
                    to_daemon.write(piece)
                    await to_daemon.drain()

            async def down():
                passed = 0
                while passed < HEARD_BYTES and (piece := await from_daemon.read(350)):
                    passed += len(piece)
                    writer.write(piece)
                    await writer.drain()
                await asyncio.Event().wait()

            try:
                await asyncio.gather(up(), down(), return_exceptions=True)
            except asyncio.CancelledError:
                pass  # the test is over
            finally:
                for stream in (to_daemon, writer):
                    stream.transport.abort()

        if not hasattr(self, "relay_port"):
            server = await asyncio.start_server(relay, "127.0.0.1", 0)
            self.relays = server
            self.relay_port = server.sockets[0].getsockname()[1]
        rpc = capnp.TwoPartyClient(await capnp.AsyncIoStream.create_connection(host="127.0.0.1", port=self.relay_port))
        login = await asyncio.wait_for(rpc.bootstrap().cast_as(schema.Login).login(schema.protocolVersion, "hog"), WAIT_S)
        return rpc, login

    def state_of(self, daemon):
        """Requests the status until it is given, within a time that is no test of a machine's speed."""
        found = {}

        def given():
            asks = self.start_psd("status", "--json", "--here", "--timeout", str(WAIT_S), "--server", daemon.address)
            if asks.wait() == 0:
                found.update(json.loads(asks.out))
            else:
                self.assertIn("try again", asks.err)
            return found

        until("the daemon has memory for a status", given)
        return found

    def short(self, daemon):
        """Whether a peer got no memory for its answer, or lost its connection because of it."""
        counters = self.state_of(daemon)["counters"]
        return counters["refused_overload"] + counters["connections_dropped"] > 0

    def rested(self, daemon):
        """Memory of a daemon whose loops have made large answers before, and keep their buffers."""
        for _ in range(6):
            self.state_of(daemon)
        return resident(daemon)

    def hog(self, daemon, what, calls, connections):
        """Makes `calls` calls over each connection while others are served. Returns the peak of resident memory."""
        before = most = 0

        async def work():
            nonlocal before, most
            if what == "observe":
                client = SecondClient(daemon.address, {f"layer_{i:06d}_weight_of_some_length": [0.0] for i in range(TENSORS)})
                await client.join()
                await client.leave()
            before, kept = await asyncio.to_thread(self.rested, daemon), []
            for _ in range(connections):
                rpc, login = await self.deaf(daemon.port)
                kept.append((rpc, login, [getattr(login.reading, what)() for _ in range(calls)]))
                await asyncio.sleep(0)
            for _ in range(3):  # each takes its turn behind the hogs
                status = await asyncio.to_thread(self.state_of, daemon)
                most = max(most, resident(daemon), status["resident_bytes"])
                self.assertLessEqual(status["outgoing_bytes"], LIMITS["all_outgoing_bytes"] + connections * (64 << 10))
            if connections >= 100:  # together they request more than the total limit
                await asyncio.to_thread(until, "hogs are refused or cut off", lambda: self.short(daemon))
            del kept

        asyncio.run(capnp.run(asyncio.wait_for(work(), 5 * WAIT_S)))
        grown = max(most, resident(daemon)) - before
        print(f"{connections} connections, {calls} x {what}: {before >> 20} MiB and {grown >> 20} more")
        self.assertLess(grown, LIMITS["all_outgoing_bytes"] + SLACK_BYTES)

    def test_descriptions_of_the_model_over_one_connection(self):
        self.hog(self.large_daemon(tensors=TENSORS, shards=4), "observe", 300, 1)

    def test_descriptions_of_the_model_over_several(self):
        self.hog(self.large_daemon(tensors=TENSORS, shards=4), "observe", 30, 4)

    def test_states_over_many(self):
        self.hog(self.large_daemon(tensors=SHARDS, shards=SHARDS), "status", 1, 100)

    def test_rows_over_many(self):
        connections, rows = 100, 200  # of 3.2 MB in an answer
        daemon = self.daemon(limits=LIMITS, shards=1, row_shards=1, threads=2)

        async def work():
            client = SecondClient(daemon.address, {"w": [0.0]}, [("table", ROW_VALUES, "zero", 0.0, 0)])
            await client.pull([(0, 0)])
            before, kept = resident(daemon), []
            ids = b"".join(row.to_bytes(8, "little") for row in range(rows))
            for _ in range(connections):
                rpc, login = await self.deaf(daemon.port)
                observed = await asyncio.wait_for(login.reading.observe({}), WAIT_S)
                reader = observed.observing.reader
                kept.append((rpc, login, reader, [reader.pullRows(1, 1, 0, [{"table": 0, "count": rows}], ids, "") for _ in range(2)]))
            pulled = await asyncio.wait_for(client.pull([(0, row) for row in range(rows)]), WAIT_S)  # behind the hogs
            self.assertEqual(len(pulled), rows)
            grown = resident(daemon) - before
            await asyncio.to_thread(daemon.until_status, "hogs are cut off", lambda status: status["counters"]["connections_dropped"] > 0)
            del kept
            return max(grown, resident(daemon) - before)

        grown = asyncio.run(capnp.run(asyncio.wait_for(work(), 5 * WAIT_S)))
        print(f"{connections} connections, 2 x {rows} rows: {grown >> 20} MiB more")
        self.assertLess(grown, LIMITS["all_outgoing_bytes"] + SLACK_BYTES)

    def test_states_over_http(self):
        daemon = self.large_daemon("--http", "tcp://127.0.0.1:0", tensors=SHARDS, shards=SHARDS)
        page = urllib.parse.urlsplit(daemon.page)
        for _ in range(4):
            with urllib.request.urlopen(f"{daemon.page}/api/status.json", timeout=WAIT_S) as whole:
                self.assertGreater(len(whole.read()), 1_000_000)
        before, lazy = resident(daemon), []
        for _ in range(60):
            raw = socket.socket()
            self.addCleanup(raw.close)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.settimeout(WAIT_S)
            raw.connect((page.hostname, page.port))
            raw.sendall(b"GET /api/status.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
            lazy.append(raw)
        heads = [raw.recv(64) for raw in lazy]
        refused = sum(head.startswith(b"HTTP/1.1 503") for head in heads)
        self.assertGreater(refused, 40)
        self.assertLess(resident(daemon) - before, LIMITS["all_outgoing_bytes"] + SLACK_BYTES)
        self.assertEqual(self.state_of(daemon)["pid"], daemon.pid)


if __name__ == "__main__":
    processes.main()
