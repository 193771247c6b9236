"""The group of scripts/bench that measures what a standby costs, and how long its take-over lasts."""

import contextlib
import json
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time

from bench_group import SIZE, Group
from bench_programs import READY_S, Daemon, Failed
from bench_report import Row, gigabytes, milliseconds, table

ETCD = shutil.which("etcd")
FAULTS = 20
TARGET_S = 0.8
LOOK_S = 0.01
BETWEEN_S = 0.3  # in which training goes on
GONE_S = 3.0     # within which a fault has had its effect
FROZEN_S = 1.0
SMALLEST = 1 << 20  # of a model to begin with
STEPS = 10_000_000


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, condition):
    deadline = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"waited {READY_S} s in vain: {what}")
        time.sleep(LOOK_S)


class Standby(Group):
    name = "standby"
    title = "A standby"
    text = """Two daemons on the same machine and etcd beside them, all over the loopback interface. *push* is one trainer, locked, plain SGD,
64 MiB in messages over TCP: alone, and with a standby in sync, which takes the same two cores. A *gap* is the longest time between two
steps of one trainer (`mlp`, synthetic data) around a fault, its own step included: of 20 each."""
    rounds_max = 3

    def measurements(self):
        if not ETCD:
            self.unmeasured.append("a standby: etcd is not installed (Debian: etcd-server)")
            return {}
        work = {}
        for wait in (None, "standby", "none"):
            work[f"push {wait}"] = lambda w=wait: self.push(w)
        for fault in ("kill", "freeze"):
            work[fault] = lambda f=fault: self.gaps(f)
        self.seen = {"kill": [], "freeze": []}
        return work

    @contextlib.contextmanager
    def etcd(self):
        with tempfile.TemporaryDirectory(prefix="psd-bench-") as folder:
            client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
            process = subprocess.Popen([ETCD, "--data-dir", folder, "--listen-client-urls", client, "--advertise-client-urls", client,
                                        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster",
                                        f"default={peer}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                yield client
            finally:
                process.kill()
                process.wait()

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

    @staticmethod
    def in_sync(daemon):
        group = daemon.status()["group"]
        return group["waits_for_standby"] and group["standby"] == group["follower"] != ""

    @staticmethod
    def serves(daemon):
        return daemon.status()["group"]["role"] == "primary"

    def push(self, wait):
        """The rate of pushes; `wait`: see replication.wait; None: without a standby."""
        with self.etcd() as engine, self.started() as start:
            config = self.config(engine, replication={"wait": wait or "standby"})
            primary = start(config)
            until("the primary serves", lambda: self.serves(primary))
            bench = {"transport": "rpc", "size": SIZE}
            self.programs.trainer(primary.address["tcp"], "push", seconds=1, **{k: v for k, v in bench.items()})
            if wait:
                start(config)
                until("the standby is in sync", lambda: bool(primary.status()["group"]["standby"]))
            report = self.programs.trainer(primary.address["tcp"], "push", **bench)
            return report["bytes"] / report["median_s"]

    def gaps(self, fault):
        """The longest gap of FAULTS; all go to self.seen."""
        with self.etcd() as engine, self.started() as start, tempfile.TemporaryDirectory(prefix="psd-bench-") as folder:
            configs = [self.config(engine, listen=[f"tcp://127.0.0.1:{free_port()}"]) for _ in range(2)]
            # Each also listens where its status is asked for.
            pair = []
            for config in configs:
                pair.append(self.start_at(start, config))
                until("a daemon serves", lambda: self.serves(pair[0]))
            metrics = pathlib.Path(folder) / "metrics"
            servers = ",".join(config["listen"][0] for config in configs)
            trainer = subprocess.Popen([self.programs.folder / "psd-trainer", "train", "--server", servers, "--rank", "0", "--world-size", "1",
                                        "--model", "mlp", "--data", "synthetic:4096", "--threads", "1", "--device", "cpu", "--steps",
                                        str(STEPS), "--metrics", metrics], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
            try:
                times = [self.disturb(fault, start, pair, configs, trainer) for _ in range(FAULTS)]
                time.sleep(GONE_S)
            finally:
                trainer.kill()
                trainer.wait()
            steps = [json.loads(line)["time"] for line in metrics.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
        for moment in times:
            near = [(after - before) for before, after in zip(steps, steps[1:]) if after >= moment and before <= moment + GONE_S]
            self.seen[fault].append(max(near))
        return max(self.seen[fault][-FAULTS:])

    def start_at(self, start, config):
        """A daemon at the address that the configuration names, and at a Unix socket for its status."""
        with tempfile.NamedTemporaryFile(prefix="psd-bench-") as name:
            unix = f"unix://{name.name}.sock"
        daemon = start({**config, "listen": [*config["listen"], unix], "replication": {"addresses": config["listen"]}})
        daemon.address["unix"] = unix
        return daemon

    def disturb(self, fault, start, pair, configs, trainer):
        """One fault of the primary; ends with both daemons in their new places. Gives when it was."""
        until("the standby is in sync", lambda: self.in_sync(pair[0]))
        time.sleep(BETWEEN_S)
        if trainer.poll() is not None:
            raise Failed("psd-trainer ended by itself")
        moment = time.time()
        if fault == "kill":
            pair[0].process.kill()
            pair[0].process.wait()
        else:
            pair[0].process.send_signal(signal.SIGSTOP)
        until("the standby has taken over", lambda: self.serves(pair[1]))
        if fault == "kill":
            time.sleep(BETWEEN_S)
            pair[0] = self.start_at(start, configs[0])
        else:
            time.sleep(FROZEN_S)
            pair[0].process.send_signal(signal.SIGCONT)
        pair.reverse()
        configs.reverse()
        return moment

    def tables(self, medians):
        if not medians:
            return []
        rows = [Row.at_least("push, with a standby", medians["push standby"], "alone", medians["push None"], None, gigabytes),
                Row.at_least("push, with a standby that is not waited for", medians["push none"], "alone", medians["push None"], None, gigabytes)]
        lines = ["| fault of the primary | faults | median gap | longest gap | target |", "|---|---|---|---|---|"]
        for fault, text in (("kill", "`kill -9`"), ("freeze", "SIGSTOP")):
            gaps = self.seen[fault]
            lines.append(f"| {text} | {len(gaps)} | {milliseconds(statistics.median(gaps))} | {milliseconds(max(gaps))} | "
                         f"≤ {milliseconds(TARGET_S)} |")
        return [table(rows), "\n".join(lines)]
