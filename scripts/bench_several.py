"""The group of scripts/bench that compares two daemons serving a model together with one."""

import contextlib
import pathlib
import tempfile

from bench_group import SIZE, Group
from bench_programs import Daemon
from bench_report import Row, gigabytes
from bench_standby import free_port

# By name: the kind of socket, and bench's transport.
WAYS = {"Unix": ("unix", "rpc"), "TCP": ("tcp", "rpc"), "shared memory": ("unix", "shm")}


class Several(Group):
    name = "several"
    title = "Several daemons"
    text = """One trainer, hogwild, plain SGD, 64 MiB: two daemons, each with half of the parameters, beside one, on the same two cores: what two
daemons cost, not what two machines gain."""
    rounds_max = 3

    def measurements(self):
        work = {}
        for way in WAYS:
            for operation in ("pull", "push"):
                for daemons in (1, 2):
                    work[f"{operation} {way} {daemons}"] = lambda o=operation, w=way, n=daemons: self.served(n, w, o)
        return work

    def served(self, daemons, way, operation):
        socket, transport = WAYS[way]
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psd-bench-")))
            addresses = [f"unix://{folder}/{i}.sock" if socket == "unix" else f"tcp://127.0.0.1:{free_port()}" for i in range(daemons)]
            for i, address in enumerate(addresses):
                own = folder / str(i)
                own.mkdir()
                config = {"device": self.programs.device, "threads": 1, "listen": [address, "tcp://127.0.0.1:0"], "daemons": addresses, "index": i}
                daemon = Daemon(self.programs.folder / "psd", own, config)
                stack.callback(lambda daemon=daemon: (daemon.process.kill(), daemon.process.wait()))
                daemon.await_ready()
            report = self.programs.trainer(addresses[0], operation, size=SIZE, transport=transport)
            return report["bytes"] / report["median_s"]

    def rows(self, medians):
        return [Row.at_least(f"{operation}, {way}, two daemons", medians[f"{operation} {way} 2"], "one daemon",
                             medians[f"{operation} {way} 1"], None, gigabytes) for way in WAYS for operation in ("pull", "push")]
