"""The Python package compared with the C++ programs, for scripts/bench."""

from bench_group import SIZE, Group
from bench_programs import Failed
from bench_report import Row, gigabytes, milliseconds

SOCKETS = {"unix": "Unix", "tcp": "TCP"}
BATCH = 32


def in_turns_of(samples):
    """The means of C++ and of Python, of C++, Python, Python, C++."""
    first, second, third, fourth = samples
    return (first + fourth) / 2, (second + third) / 2


def rate(value):
    return f"{value:,.0f} samples/s"


class Python(Group):
    name = "python"
    title = "The Python package"
    summary = ("Python: mnist_cnn",)
    text = """One trainer, hogwild, plain SGD: `psd.Client` beside `psd-trainer bench`, 64 MiB; `psd.torch.Optimizer` beside `psd-trainer` and
`torch.optim.SGD`, mnist_cnn, batch 32, one thread, Unix socket, without overlap; AdamW for 150 parameters of 64 elements."""

    def measurements(self):
        programs = self.programs
        if not programs.has_package():
            self.unmeasured.append("the package: this build has none, or no python3 with torch was found")
            self.rounds_max = 1
            return {"nothing": lambda: 0}
        self.of_python = {}  # samples of the round, alternating with those of C++
        work = {}
        for operation in ("pull", "push"):
            for way, (socket, transport) in {**{shown: (socket, "rpc") for socket, shown in SOCKETS.items()},
                                             "shared memory": ("unix", "shm")}.items():
                name = f"{operation}, {way}"
                work[f"{name}, C++"] = lambda n=name, o=operation, s=socket, t=transport: self.transfers(n, o, s, t)
                work[name] = lambda n=name: self.taken(n)
        work["step, C++"] = lambda: self.steps(8 * programs.seconds)
        work["step"] = lambda: self.taken("step")
        work["step, local"] = lambda: self.taken("step, local")
        work["beyond"] = self.parameters
        for name in ("bytes", "bytes, bfloat16"):
            work[name] = lambda n=name: self.taken(n)
        return work

    def taken(self, name):
        """Of the previous turns."""
        if name not in self.of_python:
            raise Failed("the turns with C++ did not end well")
        return self.of_python.pop(name)

    def transfers(self, name, operation, socket, transport):
        """Bytes per second."""
        with self.programs.daemon() as daemon:
            address = daemon.address[socket]
            self.programs.trainer(address, operation, size=SIZE, transport=transport)  # the first client touches fresh memory
            turns = [run(address, operation, size=SIZE, transport=transport) for run in self.in_turns()]
        cpp, self.of_python[name] = in_turns_of([turn["bytes"] / turn["median_s"] for turn in turns])
        return cpp

    def in_turns(self):
        return (self.programs.trainer, self.programs.python_client, self.programs.python_client, self.programs.trainer)

    def steps(self, seconds):
        """Samples per second, each time with a daemon of its own, since the two name the model's parameters
        differently."""
        programs, turns = self.programs, []
        for run in self.in_turns():
            more = {"model": "mnist_cnn", "threads": 1} if run == programs.trainer else {}
            with programs.daemon() as daemon:
                turns.append(run(daemon.address["unix"], "train", seconds=seconds, **more))
        cpp, self.of_python["step"] = in_turns_of([BATCH / turn["server_median_s"] for turn in turns])
        _, self.of_python["step, local"] = in_turns_of([BATCH / turn["local_median_s"] for turn in turns])
        return cpp

    def parameters(self):
        """Seconds of a step of 150 parameters beyond its transfers; and the bytes of a step of each dtype."""
        done = {}
        for dtype in ("float32", "bfloat16"):
            with self.programs.daemon() as daemon:
                done[dtype] = self.programs.python_client(daemon.address["unix"], "parameters", dtype=dtype, transport="rpc")
        self.of_python.update({"bytes": done["float32"]["bytes"], "bytes, bfloat16": done["bfloat16"]["bytes"]})
        return done["float32"]["beyond_s"]

    def rows(self, medians):
        if "nothing" in medians:
            return []
        rows = [Row.at_least(f"Python: {name}", medians[name], "psd-trainer bench", medians[f"{name}, C++"], 0.95, gigabytes)
                for name in medians if name.startswith(("pull", "push")) and not name.endswith("C++")]
        return [*rows, Row.at_least("Python: mnist_cnn", medians["step"], "psd-trainer", medians["step, C++"], 0.95, rate),
                Row.at_least("Python: mnist_cnn", medians["step"], "torch.optim.SGD", medians["step, local"], None, rate),
                Row.ceiling("Python: step() beyond its transfers, 150 parameters", medians["beyond"], 0.0003, milliseconds),
                Row.at_most("Python: a step of bfloat16, bytes", medians["bytes, bfloat16"], "float32", medians["bytes"], 0.51, lambda value: f"{value:,.0f}")]
