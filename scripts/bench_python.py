"""The Python package beside the C++ programs, for scripts/bench."""

from bench_group import SIZE, Group
from bench_programs import Failed
from bench_report import Row, gigabytes

SOCKETS = {"unix": "Unix", "tcp": "TCP"}
BATCH = 32


def rate(value):
    return f"{value:,.0f} samples/s"


class Python(Group):
    name = "python"
    title = "The Python package"
    summary = ("Python: pull, TCP", "Python: push, TCP", "Python: mnist_cnn")
    text = """One trainer, hogwild, plain SGD. Pulls and pushes of 64 MiB by `psd.Client` beside those of `psd-trainer bench`, a call for
each as they take turns. A step of mnist_cnn, batch 32, one thread, on a Unix socket: `psd.torch.Optimizer` beside `psd-trainer`, both
pulling, computing and pushing one after the other, and, in one process with it, beside `torch.optim.SGD`."""

    def measurements(self):
        programs = self.programs
        if not programs.has_package():
            self.unmeasured.append("the package: this build has none, or no python3 with torch was found")
            self.rounds_max = 1
            return {"nothing": lambda: 0}
        work = {}
        for operation in ("pull", "push"):
            for way, (socket, transport) in {**{shown: (socket, "rpc") for socket, shown in SOCKETS.items()},
                                             "shared memory": ("unix", "shm")}.items():
                work[f"{operation}, {way}"] = lambda o=operation, s=socket, t=transport: self.python_rate(s, o, t)
                work[f"{operation}, {way}, C++"] = lambda o=operation, s=socket, t=transport: self.rate(s, o, transport=t)
        seconds = 8 * programs.seconds
        work["step"] = lambda: self.step(seconds)
        work["step, local"] = self.local_step
        work["step, C++"] = lambda: BATCH / programs.fresh("unix", "train", model="mnist_cnn", seconds=seconds,
                                                           threads=1)["server_median_s"]
        return work

    def python_rate(self, socket, operation, transport):
        report = self.programs.python_client(socket, operation, transport=transport, size=SIZE)
        return report["bytes"] / report["median_s"]

    def step(self, seconds):
        self.report = None  # of the round before
        self.report = self.programs.python_client("unix", "train", seconds=seconds)
        return BATCH / self.report["server_median_s"]

    def local_step(self):
        if self.report is None:
            raise Failed("the run that measures both did not end well")
        return BATCH / self.report["local_median_s"]

    def rows(self, medians):
        if "nothing" in medians:
            return []
        rows = [Row.at_least(f"Python: {name}", medians[name], "psd-trainer bench", medians[f"{name}, C++"], 0.95, gigabytes)
                for name in medians if not name.startswith("step") and not name.endswith("C++")]
        return [*rows, Row.at_least("Python: mnist_cnn", medians["step"], "psd-trainer", medians["step, C++"], 0.95, rate),
                Row.at_least("Python: mnist_cnn", medians["step"], "torch.optim.SGD", medians["step, local"], None, rate)]
