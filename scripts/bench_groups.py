"""The measurements of scripts/bench, and the targets for their figures; for groups in general see bench_group.py."""

import statistics
import time

import bench_programs
from bench_executor import Executor
from bench_group import MIB, SIZE, Group
from bench_learners import Learners
from bench_loops import Aggregators, Kernels, Optimizers
from bench_models import TableModels
from bench_network import Network
from bench_python import Python
from bench_report import Row, gigabytes, mebibytes, microseconds, milliseconds
from bench_rows import Rows
from bench_several import Several
from bench_sparse import Sparse
from bench_standby import Standby
from bench_tls import Tls
from bench_versions import Publish

PIECE = MIB  # of the windowed plain streams
BUFFERS = (0, MIB)  # of the plain streams' sockets; 0: the system's
TRANSPORTS = {"unix": "Unix", "tcp": "TCP"}
# One trainer's transfer of all parameters on a Unix socket: bench's operation and transport.
TRANSFERS = {"pull, shared memory": ("pull", "shm"), "pull, messages": ("pull", "rpc"), "push, messages": ("push", "rpc")}
LARGEST = 10**9
FREE_BYTES_OF_LARGEST = 14 << 30  # parameters, one trainer's values and its gradient, 4 GB each, and a margin
FLAT_PUSHES = 10_000
FLAT_BYTES = MIB  # allowed growth of the daemon's memory over that many pushes
MEMORY_SLACK = 32 * MIB
SPIN_US = 50  # of both ends, in the rows called awake
IN_FLIGHT = 4 * MIB  # the default window, which does not grow on a Unix socket, of slices of the default size


def best(medians, prefix):
    """The highest measured figure among those whose name starts with the prefix."""
    return max((value for name, value in medians.items() if name.startswith(prefix) and value is not None), default=None)


def free_bytes():
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


class Transfer(Group):
    name = "transfer"
    title = "Pull and push of 64 MiB"
    summary = tuple(f"{operation}, {way}" for operation in ("pull", "push") for way in ("Unix", "TCP", "shared memory"))
    text = """One trainer, hogwild, plain SGD; bytes over the time of the median transfer.

- *plain stream*: two processes that only send and receive, the receiver of a push with SGD; the best of four ways.
- *copy*: one thread; a pull through shared memory uses two. *apply*: the daemon's SGD loop over memory of its own process.
- *awake*: both ends poll for 50 µs after each message (`spin_us`, `--spin`)."""

    def measurements(self):
        programs = self.programs
        work = {}
        for transport in TRANSPORTS:
            for operation in ("pull", "push"):
                work[f"{operation} {transport}"] = lambda t=transport, o=operation: self.rate(t, o, transport="rpc")
                for piece in (0, PIECE):
                    for buffer in BUFFERS:
                        work[f"stream {operation} {transport} {piece} {buffer}"] = (
                            lambda t=transport, o=operation, p=piece, b=buffer: programs.reference(
                                "stream", transport=t, direction=o, size=SIZE, piece=p, buffer=b)["bytes_per_s"])
            work[f"message {transport}"] = lambda t=transport: programs.reference(
                "message", transport=t, size=SIZE)["bytes_per_s"]
        for operation in ("copy", "copy_streaming", "sgd"):
            # Time for --size bytes, not for the bytes that the loop reads and writes in total.
            work[f"memory {operation}"] = lambda o=operation: SIZE / programs.reference(
                "memory", operation=o, size=SIZE)["median_s"]
        work["pull shm"] = lambda: self.rate("unix", "pull", transport="shm")
        work["push shm"] = lambda: self.rate("unix", "push", transport="shm")
        work["push shm awake"] = lambda: self.rate("unix", "push", config={"spin_us": SPIN_US}, transport="shm", spin=SPIN_US)
        if programs.python:
            for operation in ("pull", "push"):
                work[f"torch {operation}"] = lambda o=operation: self.torch(o)
        else:
            self.unmeasured.append("PyTorch RPC: no python3 with torch (name one by PSD_PYTHON)")
        return work

    def torch(self, operation):
        """One run measures both directions; the second call returns the rest of the first."""
        if operation == "pull":
            self.last_torch = self.programs.torch_rpc(SIZE)
        return self.last_torch[f"{operation}_bytes_per_s"]

    def rows(self, medians):
        rows = []
        for transport, shown in TRANSPORTS.items():
            for operation, target in (("pull", {"unix": 0.85, "tcp": 0.85}), ("push", {"unix": 0.90, "tcp": 0.95})):
                rows.append(Row.at_least(f"{operation}, {shown}", medians[f"{operation} {transport}"], "plain stream",
                                         best(medians, f"stream {operation} {transport} "), target[transport], gigabytes))
        rows.append(Row.at_least("pull, shared memory", medians["pull shm"], "copy", best(medians, "memory copy"), 0.9, gigabytes))
        rows.append(Row.at_least("push, shared memory", medians["push shm"], "apply", medians["memory sgd"], 0.6, gigabytes))
        rows.append(Row.at_least("push, shared memory, awake", medians["push shm awake"], "apply", medians["memory sgd"], None, gigabytes))
        for operation in ("pull", "push"):
            if f"torch {operation}" in medians:
                rows.append(Row.at_least(f"{operation}, TCP", medians[f"{operation} tcp"], "PyTorch RPC",
                                         medians[f"torch {operation}"], 2.5, gigabytes))
        for transport, shown in TRANSPORTS.items():
            rows.append(Row.at_least(f"pull, {shown}", medians[f"pull {transport}"], "Cap'n Proto, one message",
                                     medians[f"message {transport}"], None, gigabytes))
        return rows


class Latency(Group):
    name = "latency"
    title = "Small calls"
    summary = ("round trip, Unix",)
    text = """An empty call and its answer. *ping-pong*: eight bytes between two bare processes. *Cap'n Proto as it comes*: an empty call of the
library. *beside bulk*: while another client pulls 64 MiB repeatedly. *awake*: as above."""

    def measurements(self):
        programs = self.programs
        work = {}
        for transport in TRANSPORTS:
            work[f"call {transport}"] = lambda t=transport: programs.fresh(t, "latency")["median_s"]
            work[f"awake {transport}"] = lambda t=transport: programs.fresh(t, "latency", {"spin_us": SPIN_US}, spin=SPIN_US)["median_s"]
            work[f"pingpong {transport}"] = lambda t=transport: programs.reference("pingpong", transport=t)["median_s"]
            work[f"plain {transport}"] = lambda t=transport: programs.reference("call", transport=t)["median_s"]
            work[f"many {transport}"] = lambda t=transport: programs.fresh(t, "latency", outstanding=64)["rounds_per_s"]
            work[f"busy {transport}"] = lambda t=transport: self.busy(t)
            work[f"bulk {transport}"] = lambda t=transport: programs.fresh(
                t, "pull", transport="rpc", size=SIZE)["median_s"]
        return work

    def busy(self, transport):
        programs = self.programs
        with programs.daemon() as daemon:
            address = daemon.address[transport]
            bulk = programs.trainer_arguments(address, "pull", transport="rpc", size=SIZE, seconds=programs.seconds + bench_programs.READY_S)
            with bench_programs.background(bulk) as running:
                deadline = time.monotonic() + bench_programs.READY_S
                while sum(trainer["pulled_bytes"] for trainer in daemon.status()["trainers"]) < 4 * SIZE:
                    if running.poll() is not None or time.monotonic() > deadline:
                        raise bench_programs.Failed("the client that pulls in bulk did not get going")
                    time.sleep(0.01)
                return programs.trainer(address, "latency")["median_s"]

    def rows(self, medians):
        rows = []
        for transport, shown in TRANSPORTS.items():
            call = medians[f"call {transport}"]
            target = 1.4 if transport == "unix" else None
            rows.append(Row.at_most(f"round trip, {shown}", call, "ping-pong", medians[f"pingpong {transport}"], target,
                                    microseconds))
            rows.append(Row.at_most(f"round trip, {shown}", call, "Cap'n Proto as it comes", medians[f"plain {transport}"],
                                    None, microseconds))
            rows.append(Row.at_most(f"round trip, {shown}, awake", medians[f"awake {transport}"], "ping-pong",
                                    medians[f"pingpong {transport}"], target, microseconds))
            rows.append(Row.floor(f"calls per second, 64 unanswered, {shown}", medians[f"many {transport}"], 60_000,
                                  lambda value: f"{value:,.0f}"))
            rows.append(Row.at_most(f"round trip beside bulk, {shown}", medians[f"busy {transport}"], "one pull of 64 MiB",
                                    medians[f"bulk {transport}"], 1.0, microseconds))
        return rows


class Train(Group):
    name = "train"
    title = "A training step"
    summary = ("step of mnist_cnn",)
    text = """The median step, batch 32, synthetic data, hogwild, Unix socket, one computing thread unless stated; without a server: SGD in place.
*overlap*: transfers beside the computation."""
    targets = {"mnist_cnn": 1.10, "mlp": 1.5}
    overlap = {"inflight": 2, "prefetch": True}
    variants = {"": {"threads": 1}, ", overlap": {"threads": 1, **overlap}, ", overlap, a thread for each core": overlap}

    def measurements(self):
        work = {}
        for variant, flags in self.variants.items():
            for model in self.targets:
                work[f"{model}{variant}"] = lambda m=model, v=variant, f=flags: self.step(m, v, f)
                work[f"{model}{variant} alone"] = lambda m=model, v=variant: self.alone[m + v]
        return work

    def step(self, model, variant, flags):
        self.alone = getattr(self, "alone", {})
        report = self.programs.fresh("unix", "train", model=model, seconds=4 * self.programs.seconds, **flags)
        self.alone[model + variant] = report["local_median_s"]
        return report["server_median_s"]

    def rows(self, medians):
        return [Row.at_most(f"step of {name}", medians[name], "without a server", medians[f"{name} alone"],
                            self.targets[name.partition(",")[0]], milliseconds)
                for name in medians if not name.endswith(" alone")]


class Memory(Group):
    name = "memory"
    title = "Memory of the daemon"
    text = """During pushes and pulls of 64 MiB in messages. The target is parameters × (1 + optimizer state slots) + 36 MiB; for the rise of the
last row, over 10,000 pushes of 16 KiB from clients that come and go, 1 MiB."""
    rounds_max = 1
    slots = {"sgd": 0, "adagrad": 1, "adam": 2}

    def measurements(self):
        work = {f"resident {name}": lambda n=name: self.resident_peak(n) for name in self.slots}
        work["rise"] = self.rise
        return work

    def resident_peak(self, optimizer):
        with self.programs.daemon({"optimizer": {"type": optimizer}}) as daemon:
            self.programs.trainer(daemon.address["unix"], "pushpull", size=SIZE, transport="rpc")
            return daemon.resident_peak()

    def rise(self):
        size = 16 << 10
        with self.programs.daemon() as daemon:
            self.programs.trainer(daemon.address["unix"], "push", size=size, seconds=0.2)
            before = daemon.status()["resident_bytes"]
            pushes = 0
            while pushes < FLAT_PUSHES:
                pushes += self.programs.trainer(daemon.address["unix"], "push", size=size, seconds=0.5)["rounds"]
            return daemon.status()["resident_bytes"] - before

    def rows(self, medians):
        rows = [Row.ceiling(f"resident at most, {name}, {slots} slot(s)", medians[f"resident {name}"],
                            SIZE * (1 + slots) + MEMORY_SLACK + IN_FLIGHT, mebibytes) for name, slots in self.slots.items()]
        return rows + [Row.ceiling("rise over 10,000 pushes", medians["rise"], FLAT_BYTES, mebibytes)]


class Sizes(Group):
    name = "sizes"
    title = "From 10⁴ to 10⁹ parameters"
    text = """Unix socket, one trainer, plain SGD. The straight line goes through the times of 10⁴ and 10⁷ parameters."""
    rounds_max = 3
    line_through = (10**4, 10**7)

    def measurements(self):
        work, self.large = {}, {}
        sizes = [10**4, 10**5, 10**6, 10**7, 10**8]
        if self.quick:
            self.unmeasured.append("10⁹ parameters: this was a quick run")
        elif free_bytes() < FREE_BYTES_OF_LARGEST:
            self.unmeasured.append(f"10⁹ parameters: {free_bytes() >> 30} GiB of memory are free, and it takes "
                                   f"{FREE_BYTES_OF_LARGEST >> 30}")
        else:
            sizes.append(LARGEST)
        for size in sizes:
            for way in TRANSFERS:
                work[f"{way} {size}"] = lambda w=way, s=size: self.once_if_large(w, s)
        return work

    def once_if_large(self, way, parameters):
        """The largest is measured for its 10 s only in the first round."""
        if parameters < LARGEST:
            return self.time(way, parameters)
        if way not in self.large:
            self.large[way] = self.time(way, parameters)
        return self.large[way]

    def time(self, way, parameters):
        """Seconds of the median transfer."""
        operation, transport = TRANSFERS[way]
        return self.programs.fresh("unix", operation, size=4 * parameters, transport=transport)["median_s"]

    def line(self, way, size, medians):
        """Seconds by linear interpolation; None if one of the end points was not measured."""
        small, large = self.line_through
        ends = medians[f"{way} {small}"], medians[f"{way} {large}"]
        return None if None in ends else ends[0] + (ends[1] - ends[0]) * (size - small) / (large - small)

    def rows(self, medians):
        rows = []
        for name, value in medians.items():
            way, _, size = name.rpartition(" ")
            if int(size) in self.line_through:
                continue
            rows.append(Row.at_most(f"10{'⁴⁵⁶⁷⁸⁹'[len(size) - 5]} parameters: {way}", value, "straight line",
                                    self.line(way, int(size), medians), 1.2, milliseconds))
        return rows


class Trainers(Group):
    name = "trainers"
    title = "Several trainers"
    text = """All trainers together, each a process, Unix socket. *fairness*: the rounds of the slowest trainer by those of the fastest, the least of
all counts."""
    rounds_max = 3
    counts = (1, 2, 4, 8, 16)

    def seconds(self):
        return self.programs.seconds * 2  # so that each of sixteen trainers has several rounds

    def measurements(self):
        work = {}
        self.fairness = {}
        for way in TRANSFERS:
            for count in self.counts:
                work[f"{way} {count}"] = lambda w=way, n=count: self.together(w, n)
        return work

    def together(self, way, count):
        operation, transport = TRANSFERS[way]
        report = self.programs.fresh("unix", operation, size=16 * MIB, transport=transport, trainers=count,
                                     seconds=self.seconds())
        self.fairness.setdefault(f"{way} {count}", []).append(report["fairness"])
        return report["bytes_per_s"]

    def rows(self, medians):
        rows = []
        for way in TRANSFERS:
            for count in self.counts[1:]:
                name = f"{way} {count}"
                rows.append(Row.at_least(f"{way}, {count} trainers", medians[name], "one trainer", medians[f"{way} 1"], 1.0,
                                         gigabytes))
            fairness = [statistics.median(self.fairness[name]) for name in (f"{way} {count}" for count in self.counts[1:]) if self.fairness.get(name)]
            if fairness:
                rows.append(Row.floor(f"{way}: fairness", min(fairness), 0.5, lambda value: f"{value:.2f}"))
        return rows


class Connections(Group):
    name = "connections"
    title = "Several connections of one trainer"
    text = """One trainer, 64 MiB in messages, four shards, by its `--connections`: the gain depends on idle cores."""
    rounds_max = 3
    counts = (1, 4)

    def measurements(self):
        return {f"{operation}, {TRANSPORTS[socket]}, {count}":
                    lambda s=socket, o=operation, n=count: self.rate(s, o, transport="rpc", connections=n)
                for socket in TRANSPORTS for operation in ("pull", "push") for count in self.counts}

    def rows(self, medians):
        return [Row.at_least(f"{way}, {count} connections", medians[f"{way}, {count}"], "one connection", medians[f"{way}, 1"],
                             None, gigabytes)
                for way in dict.fromkeys(name.rpartition(", ")[0] for name in medians) for count in self.counts[1:]]


class Sweep(Group):
    name = "sweep"
    title = "Chunk and window"
    text = """Pull and push of 64 MiB in messages, GB/s, by `--chunk` (down) and `--window` (across). The best of each transfer is bold. The defaults are
1 MiB and a window of 4, which grows with the round-trip time."""
    rounds_max = 2
    chunks = {"256K": 256 << 10, "1M": MIB, "4M": 4 * MIB}
    windows = (1, 2, 4, 8, 16)

    def seconds(self):
        return self.programs.seconds / 2  # there are many

    def measurements(self):
        return {self.key(socket, operation, chunk, window):
                    lambda s=socket, o=operation, c=self.chunks[chunk], w=window: self.rate(
                        s, o, transport="rpc", chunk=c, window=w, seconds=self.seconds())
                for socket in TRANSPORTS for operation in ("pull", "push") for chunk in self.chunks for window in self.windows}

    @staticmethod
    def key(socket, operation, chunk, window):
        return f"{operation}, {TRANSPORTS[socket]}, {chunk} × {window}"

    def tables(self, medians, rounds=()):
        lines = ["| | " + " | ".join(str(window) for window in self.windows) + " |", "|---" * (1 + len(self.windows)) + "|"]
        for socket, shown in TRANSPORTS.items():
            for operation in ("pull", "push"):
                most = best(medians, f"{operation}, {shown}, ")
                for chunk in self.chunks:
                    values = [medians[self.key(socket, operation, chunk, window)] for window in self.windows]
                    cells = ["–" if value is None else f"**{value / 1e9:.2f}**" if value == most else f"{value / 1e9:.2f}"
                             for value in values]
                    lines.append(f"| {operation}, {shown}, {chunk} | " + " | ".join(cells) + " |")
        return ["\n".join(lines)]


class Devices(Group):
    name = "devices"
    title = "Between CUDA devices"
    text = """One trainer with its values on a CUDA device, plain SGD, through the daemon's device memory, beside values in host memory. *large*: slices
of 32 MiB (`limits.slice_bytes`) in place of 4.

Two processes take turns at a GPU, about 0.3 ms a slice: use larger slices, fewer shards, or
[MPS](../guides/elastic_training.md#several-processes-on-one-gpu)."""
    ways = {"device": {}, "device, large": {"config": {"limits": {"slice_bytes": 32 * MIB, "message_bytes": 64 * MIB}}}, "host": None}

    def measurements(self):
        device = self.programs.device
        if not device.startswith("cuda:"):
            self.unmeasured.append(f"transfers between devices: the daemon's parameters were on {device} (--device)")
            self.rounds_max = 1
            return {"nothing": lambda: 0}
        flags = {way: {} if more is None else {"device": device, **more} for way, more in self.ways.items()}
        return {f"{policy}, {operation}, {way}": lambda o=operation, p=policy, f=flags[way]: self.rate(
                    "unix", o, **{**f, "config": {"policy": {"type": p}, **f.get("config", {})}})
                for policy in ("hogwild", "sync") for operation in ("pull", "push") for way in self.ways}

    def rows(self, medians):
        return [Row.at_least(f"{policy}, {operation} of 64 MiB{way.removeprefix('device')}", medians[f"{policy}, {operation}, {way}"],
                             "host memory", medians[f"{policy}, {operation}, host"], None, gigabytes)
                for policy in ("hogwild", "sync") for operation in ("pull", "push") for way in self.ways
                if way != "host" and "nothing" not in medians]


GROUPS = (Transfer, Latency, Train, Python, Rows, TableModels, Memory, Sizes, Trainers, Connections, Tls, Standby, Several, Executor, Network, Learners,
          Sweep, Devices, Optimizers, Kernels, Aggregators, Publish, Sparse)
