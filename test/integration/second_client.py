"""A trainer in pure Python, written from docs/reference/protocol.md and schema/psd.capnp alone: an implementation of the protocol
that shares no code with psd. Values travel in messages as float32."""

import asyncio
import math
import os
import pathlib
import secrets
import socket
import struct
import time

import capnp
import numpy as np

REPO = pathlib.Path(__file__).resolve().parents[2]
# /capnp/c++.capnp, which the schema imports, is in pycapnp's package. Without it the process would be aborted.
schema = capnp.load(str(REPO / "schema" / "psd.capnp"), imports=[str(pathlib.Path(capnp.__file__).resolve().parents[1])])

GRAIN = 16  # elements that a tensor is padded to
ROW_KINDS = ("zero", "uniform", "normal")
SECONDS_MAX = 60


class Refused(Exception):
    """An error in an answer of the daemon."""

    def __init__(self, error):
        super().__init__(f"{error.code}: {error.message}")
        self.code = str(error.code)


def checked(answer):
    """A union of a result and an error: returns the former, or raises the latter."""
    if answer.which() == "error":
        raise Refused(answer.error)
    return answer


def signature(tensors, tables=()):
    """Signature of a model: pairs of name and shape, and (name, dim, kind, scale, seed) of each table."""
    def number(value):
        return int(value).to_bytes(8, "little")

    def text(value):
        return number(len(value)) + value.encode()

    parts = [text(name) + b"f32" + number(len(shape)) + b"".join(map(number, shape)) for name, shape in tensors]
    if tables:
        parts.append(b"tables")
    for name, dim, kind, scale, seed in tables:
        bits = struct.unpack("<I", struct.pack("<f", scale))[0]
        parts.append(text(name) + number(dim) + number(ROW_KINDS.index(kind)) + number(bits) + number(seed))
    value = 0xcbf29ce484222325
    for byte in b"".join(parts):
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return value


def row_hash(row_id):
    """SplitMix64."""
    z = (row_id + 0x9e3779b97f4a7c15) % 2**64
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 % 2**64
    z = (z ^ z >> 27) * 0x94d049bb133111eb % 2**64
    return z ^ z >> 31


class Connection:
    """Result of a join over one socket."""

    def __init__(self, rpc, joined):
        self.rpc = rpc
        self.session = joined.session
        access = joined.access
        self.daemon = joined.daemon
        self.attachment, self.resumed = joined.attachment, joined.resumed
        self.shards = [(shard.begin, shard.count) for shard in access.shards]
        self.row_shards = [(shard.hashFirst, shard.hashLast, list(shard.tables)) for shard in access.rowShards]
        self.slice = access.sliceElementsMax // GRAIN * GRAIN
        self.must_initialize = joined.mustInitialize


class SecondClient:
    """Used on one event loop, one call after the other. `tensors`: name to initial values; `tables`: as for
    signature()."""

    def __init__(self, address, tensors, tables=(), rank=0, world_size=1, name="second", token=""):
        self.token = token
        self.address, self.name, self.rank, self.world_size = address, name, rank, world_size
        self.shapes = {key: np.shape(value) for key, value in tensors.items()}
        self.tables = list(tables)
        self.places, end = {}, 0
        for key, shape in self.shapes.items():
            self.places[key] = slice(end, end + math.prod(shape))
            end += -(-math.prod(shape) // GRAIN) * GRAIN
        self.values = self.flat(tensors, end)
        self.incarnation = secrets.randbelow(2**64 - 1) + 1  # a secret: a peer that knows it could impersonate this trainer
        self.step = self.pulls = self.joins = 0
        self.basis = []
        self.connection = None

    def flat(self, tensors, size=None):
        values = np.zeros(len(self.values) if size is None else size, "<f4")
        for key, value in tensors.items():
            values[self.places[key]] = np.asarray(value, "<f4").ravel()
        return values

    def tensor(self, key):
        return self.values[self.places[key]].reshape(self.shapes[key])

    async def log_in(self):
        """(RPC system, answer)"""
        if self.address.startswith("unix://"):
            stream = await capnp.AsyncIoStream.create_unix_connection(self.address.removeprefix("unix://"))
        else:
            host, _, port = self.address.removeprefix("tcp://").rpartition(":")
            stream = await capnp.AsyncIoStream.create_connection(host=host, port=int(port))
        rpc = capnp.TwoPartyClient(stream)
        login = await rpc.bootstrap().cast_as(schema.Login).login(schema.protocolVersion, "second client", self.token)
        checked(login.status)
        return rpc, login

    async def join(self):
        rpc, login = await self.log_in()
        before = self.connection.daemon if self.connection else 0
        answer = checked(await login.training.join(
            rank=self.rank, worldSize=self.world_size, model=self.model(), host=socket.gethostname(), pid=os.getpid(),
            incarnation=self.incarnation, daemon=before))
        self.connection = Connection(rpc, answer.joined)
        self.joins += 1
        brings = self.connection.must_initialize
        if not brings:
            brings = checked(await self.connection.session.awaitModel()).which() == "mustInitialize"
        if brings:
            await asyncio.gather(*(self.initialize(*piece) for piece in self.pieces()))
            checked((await self.connection.session.initialized()).status)

    def model(self):
        tensors = [{"name": key, "dtype": "f32", "shape": list(shape)} for key, shape in self.shapes.items()]
        tables = [{"name": name, "dim": dim, "initial": {"kind": kind, "scale": scale, "seed": seed}}
                  for name, dim, kind, scale, seed in self.tables]
        return {"name": self.name, "tensors": tensors, "tables": tables, "signature": signature(self.shapes.items(), self.tables)}

    def pieces(self):
        """The slices of all shards: shard, offset in it, count, place in the arena."""
        for shard, (begin, count) in enumerate(self.connection.shards):
            for offset in range(0, count, self.connection.slice):
                yield shard, offset, min(self.connection.slice, count - offset), begin + offset

    async def initialize(self, shard, offset, count, at):
        checked((await self.connection.session.initialize(shard, offset, self.values[at:at + count].tobytes())).status)

    async def again(self, work):
        """The answer of `work`, which is restarted after a broken connection."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            try:
                if self.connection is None or self.connection.rpc is None:
                    await self.join()
                return await work()
            except (capnp.KjException, OSError) as broken:
                if time.monotonic() > deadline:
                    raise
                if isinstance(broken, capnp.KjException) and broken.type != "DISCONNECTED":
                    raise
            except Refused as refused:
                if refused.code not in ("unavailable", "sessionEnded") or time.monotonic() > deadline:
                    raise
            if self.connection is not None:
                self.connection.rpc = None
            await asyncio.sleep(0.05)

    async def pull(self, rows=None):
        """Fills `values`; with `rows`, pairs of a table's index and an id, returns theirs in that order."""
        return await self.again(lambda: self.pull_once(rows or []))

    async def pull_once(self, rows):
        self.pulls += 1
        connection = self.connection
        versions = [0] * (len(connection.shards) + len(connection.row_shards))

        async def one(shard, offset, count, at):
            answer = checked(await connection.session.pull(self.pulls, shard, offset, count, "")).slice
            self.values[at:at + count] = np.frombuffer(answer.values, "<f4")
            versions[shard] = answer.version

        found = {}

        async def some(shard, mine):
            runs, ids = self.runs(mine)
            answer = checked(await connection.session.pullRows(self.pulls, shard, 0, runs, ids, "")).rows
            versions[shard] = answer.version
            values, at = np.frombuffer(answer.values, "<f4"), 0
            for row in mine:
                dim = self.tables[row[0]][1]
                found[row] = values[at:at + dim].copy()
                at += dim

        await asyncio.gather(*(one(*piece) for piece in self.pieces()),
                             *(some(shard, mine) for shard, mine in self.rows_by_shard(rows) if mine))
        self.basis = versions
        return [found[row] for row in rows]

    async def push(self, gradients, samples=1, rows=None):
        """`rows`: (table's index, id) to its gradient. Returns the outcome by shard."""
        self.step += 1
        flat = self.flat(gradients)
        return await self.again(lambda: self.push_once(flat, samples, rows or {}))

    async def push_once(self, flat, samples, rows):
        connection = self.connection
        outcomes = {}

        def head(shard, offset, total):
            return {"step": self.step, "shard": shard, "offset": offset, "basis": self.basis[shard], "samples": samples,
                    "parts": len(connection.shards) + len(connection.row_shards), "total": total}

        def keep(shard, answer):
            outcome = str(checked(answer).accepted.outcome)
            if outcome != "received" or shard not in outcomes:
                outcomes[shard] = outcome

        async def one(shard, offset, count, at):
            keep(shard, await connection.session.push(head(shard, offset, connection.shards[shard][1]),
                                                      flat[at:at + count].tobytes(), "", count))

        async def some(shard, mine):
            runs, ids = self.runs(mine)
            gradient = b"".join(np.asarray(rows[row], "<f4").tobytes() for row in mine)
            keep(shard, await connection.session.pushRows(head(shard, 0, len(mine)), runs, ids, gradient, ""))

        await asyncio.gather(*(one(*piece) for piece in self.pieces()),
                             *(some(shard, mine) for shard, mine in self.rows_by_shard(rows)))
        return outcomes

    def rows_by_shard(self, rows):
        """The number of each row shard, and its subset of `rows`, by table."""
        for number, (first, last, tables) in enumerate(self.connection.row_shards, len(self.connection.shards)):
            yield number, sorted(row for row in rows if row[0] in tables and first <= row_hash(row[1]) <= last)

    @staticmethod
    def runs(rows):
        runs = []
        for table, _ in rows:
            if not runs or runs[-1]["table"] != table:
                runs.append({"table": table, "count": 0})
            runs[-1]["count"] += 1
        return runs, b"".join(row_id.to_bytes(8, "little") for _, row_id in rows)

    async def leave(self):
        checked((await self.connection.session.leave()).status)
