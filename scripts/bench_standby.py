"""The group of scripts/bench that measures the cost of a standby, and the delay of pushes around a fault."""

import contextlib
import math
import pathlib
import statistics
import tempfile

from bench_group import SIZE, Group
from bench_programs import Daemon
from bench_report import Row, gigabytes, milliseconds, table
from bench_takeovers import CUTS, ETCD, FAULTS, WAITS, free_port, gaps, reason_without_cuts, running_etcd, serves, until

TIMES = 20  # per fault
GAP_TARGET_S = 0.8
WAIT_TARGET_S = 0.1
TEXTS = {"kill": "`kill -9` of the primary", "freeze": "SIGSTOP of the primary", "switch": "`psd switch`", "SIGTERM": "SIGTERM of the primary",
         "cut both ways": "primary and standby cut off from each other", "cut from the primary": "what the primary sends to its standby is lost",
         "cut from the standby": "what the standby sends to its primary is lost", "primary cut off": "the primary is cut off from all"}


class Standby(Group):
    name = "standby"
    title = "A standby"
    text = """Two daemons and etcd on the same machine. *push*: one trainer, locked, plain SGD, 64 MiB in messages over TCP.
Faults: the longest time between two answered pushes; for `psd switch` and SIGTERM from a push to its answer; `silence_ms` 300. Every
answered push is in the model once afterwards, else no figure is shown."""
    rounds_max = 3

    def measurements(self):
        if not ETCD:
            self.unmeasured.append("a standby: etcd is not installed (Debian: etcd-server)")
            return {}
        work = {}
        for wait in (None, "standby", "none"):
            work[f"push {wait}"] = lambda w=wait: self.push(w)
        self.seen = {}
        cannot = reason_without_cuts()
        if cannot:
            self.unmeasured.append(f"cuts of the network: {cannot}")
        for fault in FAULTS:
            if fault not in CUTS or not cannot:
                work[fault] = lambda f=fault: self.gaps(f)
        return work

    @contextlib.contextmanager
    def etcd(self):
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        with running_etcd(client, peer):
            yield client

    def config(self, engine, **more):
        return {"device": self.programs.device, "policy": {"type": "locked"}, "optimizer": {"type": "sgd", "lr": 0.001},
                "engine": {"endpoints": [engine], "prefix": "/psd/bench"}, **more}

    @contextlib.contextmanager
    def started(self):
        """Starts daemons in folders of their own, and ends them."""
        with contextlib.ExitStack() as stack:
            daemons = []

            def start(config):
                folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psd-bench-")))
                daemon = Daemon(self.programs.folder / "psd", folder, config)
                daemons.append(daemon)
                daemon.await_ready()
                return daemon

            try:
                yield start
            finally:
                for daemon in daemons:
                    daemon.process.kill()
                    daemon.process.wait()

    def push(self, wait):
        """The rate of pushes; `wait`: see replication.wait; None: without a standby."""
        with self.etcd() as engine, self.started() as start:
            config = self.config(engine, replication={"wait": wait or "standby"})
            primary = start(config)
            until("the primary serves", lambda: serves(primary))
            bench = {"transport": "rpc", "size": SIZE}
            self.programs.trainer(primary.address["tcp"], "push", seconds=1, **bench)
            if wait:
                start(config)
                until("the standby is in sync", lambda: bool(primary.status()["replica_set"]["standby"]))
            report = self.programs.trainer(primary.address["tcp"], "push", **bench)
            return report["bytes"] / report["median_s"]

    def gaps(self, fault):
        """For TIMES faults the longest gap, or wait; all are measured in the first round."""
        if fault not in self.seen:
            self.seen[fault] = gaps(self.programs, fault, TIMES)
        return max(self.seen[fault])

    def rows(self, medians):
        if not medians:
            return []
        return [Row.at_least("push, with a standby", medians["push standby"], "alone", medians["push None"], 0.45, gigabytes),
                Row.at_least("push, with a standby that is not waited for", medians["push none"], "alone", medians["push None"], None, gigabytes)]

    def tables(self, medians, rounds=()):
        distributions = [self.distribution(fault) for fault in FAULTS if fault in self.seen]
        return [*super().tables(medians, rounds), *([table(distributions)] if distributions else [])]

    def distribution(self, fault):
        seen = sorted(self.seen[fault])
        target = WAIT_TARGET_S if fault in WAITS else GAP_TARGET_S
        usual = f"median {milliseconds(statistics.median(seen))}, 90 % {milliseconds(seen[math.ceil(0.9 * len(seen)) - 1])}"
        return Row(f"{TEXTS[fault]}, {len(seen)} times: longest", milliseconds(seen[-1]), usual, "", f"≤ {milliseconds(target)}",
                   seen[-1] <= target)
