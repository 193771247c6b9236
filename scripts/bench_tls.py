"""The group of scripts/bench that measures the cost of TLS."""

import atexit
import pathlib
import resource
import tempfile

from bench_group import SIZE, Group
from bench_programs import certificate_of, processor_seconds
from bench_report import Row, gigabytes, microseconds, seconds

GIB = 1 << 30
LONGER = 8  # so that start and first touch of the memory hardly matter
OPERATIONS = {"pull": "pull_bytes", "push": "push_bytes"}


class Tls(Group):
    name = "tls"
    title = "TLS"
    text = """One trainer, hogwild, plain SGD, 64 MiB in messages over the loopback interface. *CPU*: of both ends, kernel included. The certificate's
key is P-256."""
    rounds_max = 5

    def __init__(self, programs, quick):
        super().__init__(programs, quick)
        kept = tempfile.TemporaryDirectory(prefix="psd-bench-")
        atexit.register(kept.cleanup)
        self.folder = pathlib.Path(kept.name)
        self.runs = {}

    def seconds(self):
        return self.programs.seconds * LONGER

    def measurements(self):
        self.certificate, self.key = certificate_of("127.0.0.1", self.folder)
        work = {}
        for operation in OPERATIONS:
            for scheme in ("tcp", "tls"):
                work[f"cpu {operation} {scheme}"] = lambda o=operation, s=scheme: self.run(o, s)["cpu"]
                work[f"rate {operation} {scheme}"] = lambda o=operation, s=scheme: self.runs[o, s]["rate"]
        for scheme in ("tcp", "tls"):
            work[f"call {scheme}"] = lambda s=scheme: self.call(s)
        return work

    def config(self, scheme):
        files = {"tls": {"certificate": str(self.certificate), "key": str(self.key)}}
        return {"listen": [f"unix://{self.folder / 'psd.sock'}", f"{scheme}://127.0.0.1:0"], **files}

    def address(self, daemon, scheme):
        daemon.address["unix"] = f"unix://{self.folder / 'psd.sock'}"
        return daemon.address["tcp"].replace("tcp://", f"{scheme}://")

    def flags(self, scheme):
        return {"tls_ca": self.certificate} if scheme == "tls" else {}

    def run(self, operation, scheme):
        with self.programs.daemon(self.config(scheme)) as daemon:
            address = self.address(daemon, scheme)
            before = self.cpu(daemon)
            report = self.programs.trainer(address, operation, transport="rpc", size=SIZE, seconds=self.seconds(), **self.flags(scheme))
            used = self.cpu(daemon) - before
            moved = daemon.status()["counters"][OPERATIONS[operation]]
        self.runs[operation, scheme] = {"cpu": used / (moved / GIB), "rate": report["bytes"] / report["median_s"]}
        return self.runs[operation, scheme]

    def call(self, scheme):
        with self.programs.daemon(self.config(scheme)) as daemon:
            return self.programs.trainer(self.address(daemon, scheme), "latency", **self.flags(scheme))["median_s"]

    @staticmethod
    def cpu(daemon):
        """CPU seconds of the daemon and of all child programs that have ended."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return processor_seconds(daemon.process.pid) + children.ru_utime + children.ru_stime

    def rows(self, medians):
        rows = []
        for operation in OPERATIONS:
            rows.append(Row.at_most(f"CPU of a GiB, {operation}, TLS", medians[f"cpu {operation} tls"], "TCP", medians[f"cpu {operation} tcp"],
                                    None, seconds))
            rows.append(Row.at_least(f"{operation}, TLS", medians[f"rate {operation} tls"], "TCP", medians[f"rate {operation} tcp"], None,
                                     gigabytes))
        rows.append(Row.at_most("round trip, TLS", medians["call tls"], "TCP", medians["call tcp"], None, microseconds))
        return rows
