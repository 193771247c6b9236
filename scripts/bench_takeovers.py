"""The delay of pushes around a fault of a daemon with a standby, for the group of scripts/bench that measures standbys.
The ledgers of counting trainers verify that no push is lost or applied twice."""

import contextlib
import importlib
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from bench_programs import READY_S, Daemon, Failed, last_line

ETCD = shutil.which("etcd")
LOOK_S = 0.01
BETWEEN_S = 0.3  # during which pushes continue
FROZEN_S = 1.0
PORT = 5500  # unused elsewhere in the namespace
PLACES = {"etcd": "10.77.0.1", "a": "10.77.0.2", "b": "10.77.0.3", "trainer": "10.77.0.4"}
CUTS = {"cut both ways": lambda primary, standby: [(primary, standby), (standby, primary)],
        "cut from the primary": lambda primary, standby: [(primary, standby)],
        "cut from the standby": lambda primary, standby: [(standby, primary)],
        "primary cut off": lambda primary, standby: [(primary, place) for place in PLACES if place != primary]}
WAITS = ("switch", "SIGTERM")  # reports the longest wait of a push instead of the longest gap between two answers
FAULTS = ("kill", "freeze", *WAITS, *CUTS)


def of_tests(name):
    """A module of the tests, which is missing if there are only scripts."""
    tests = pathlib.Path(__file__).resolve().parents[1] / "test"
    for folder in ("fault", "integration"):
        if str(tests / folder) not in sys.path:
            sys.path.append(str(tests / folder))
    return importlib.import_module(name)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, condition):
    deadline = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"timed out after {READY_S} s: {what}")
        time.sleep(LOOK_S)


@contextlib.contextmanager
def running_etcd(client, peer, within=()):
    """A member at these addresses."""
    with tempfile.TemporaryDirectory(prefix="psd-bench-") as folder:
        process = subprocess.Popen([*within, ETCD, "--data-dir", folder, "--listen-client-urls", client, "--advertise-client-urls",
                                    client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster",
                                    f"default={peer}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def group_of(daemon):
    return daemon.status()["replica_set"]


def serves(daemon):
    return group_of(daemon)["role"] == "primary"


def in_sync(daemon):
    group = group_of(daemon)
    return group["waits_for_standby"] and group["standby"] == group["follower"] != ""


class Pair:
    """A primary and its standby, etcd and a counting trainer at work; in network namespaces if `network` is given.
    Ended by close()."""

    def __init__(self, programs, network=None):
        self.programs, self.network = programs, network
        self.ledgers = of_tests("ledgers")
        self.stack = contextlib.ExitStack()
        self.folder = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="psd-bench-")))
        self.started = []
        try:
            if network:
                self.listen = {place: f"tcp://{PLACES[place]}:{PORT}" for place in "ab"}
                self.engine, peer = (f"http://{PLACES['etcd']}:{port}" for port in (2379, 2380))
            else:
                self.listen = {place: f"tcp://127.0.0.1:{free_port()}" for place in "ab"}
                self.engine, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
            self.stack.enter_context(running_etcd(self.engine, peer, self.within("etcd")))
            self.daemons = {}
            for place in "ab":
                self.daemons[place] = self.start(place)
                until("a daemon serves", lambda: serves(self.daemons["a"]))
            self.primary, self.standby = "ab"
            self.ledger = self.ledgers.Ledger(0, self.folder / "ledger")
            self.trainer = subprocess.Popen(
                [*self.within("trainer"), programs.folder / "counting_trainer", ",".join(self.listen.values()), "0", "1", "100000000", "2",
                 self.ledger.path, "cpu", str(1 << 20), "cells"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL)
        except BaseException:
            self.close()
            raise

    def within(self, place):
        return of_tests("namespaces").within(place) if self.network else []

    def start(self, place):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="psd-bench-", dir=self.folder))
        config = {"device": self.programs.device, "policy": {"type": "locked"}, "optimizer": {"type": "sgd", "lr": 1}, "insecure": True,
                  "engine": {"endpoints": [self.engine], "prefix": "/psd/bench"},
                  "listen": [self.listen[place], f"unix://{folder / 'psd.sock'}"], "replication": {"addresses": [self.listen[place]]}}
        daemon = Daemon(self.programs.folder / "psd", folder, config, self.within(place))
        self.started.append(daemon)
        daemon.await_ready()
        return daemon

    def close(self):
        if hasattr(self, "trainer"):
            self.trainer.kill()
            self.trainer.wait()
        for daemon in self.started:
            daemon.process.kill()
            daemon.process.wait()
        self.stack.close()

    def psd(self, command, daemon, *more):
        return subprocess.run([self.programs.folder / "psd", command, "--server", daemon.address["unix"], *more], capture_output=True,
                              text=True, timeout=READY_S, check=False)

    def until_answered(self, more):
        goal = self.ledger.answered() + more
        until("pushes are answered", lambda: self.ledger.answered() >= goal)

    def disturb(self, fault):
        """One fault, after which both have their new roles. Returns the longest gap, or wait, that overlaps with it, in
        seconds."""
        until("the standby is in sync", lambda: in_sync(self.daemons[self.primary]))
        time.sleep(BETWEEN_S)
        if self.trainer.poll() is not None:
            raise Failed("counting_trainer exited unexpectedly")
        begin = time.monotonic_ns()
        changes = self.begin(fault)
        if changes:
            until("the standby has taken over", lambda: serves(self.daemons[self.standby]))
        self.until_answered(20)
        end = time.monotonic_ns()
        self.end(fault)
        if changes or serves(self.daemons[self.standby]):
            self.primary, self.standby = self.standby, self.primary
        self.ledger.read_new_lines()
        return (self.ledgers.longest_wait if fault in WAITS else self.ledgers.longest_gap)([self.ledger], begin, end)

    def begin(self, fault):
        """Returns whether the standby certainly takes over."""
        primary = self.daemons[self.primary]
        if fault == "kill":
            primary.process.kill()
            primary.process.wait()
        elif fault == "freeze":
            primary.process.send_signal(signal.SIGSTOP)
        elif fault == "switch":
            done = self.psd("switch", primary)
            # On a busy machine the answer may not be sent before the daemon restarts.
            if done.returncode != 0 and "connection broke" not in done.stderr:
                raise Failed(f"psd switch: {last_line(done.stderr)}")
        elif fault == "SIGTERM":
            primary.process.send_signal(signal.SIGTERM)
        else:
            for sender, receiver in CUTS[fault](self.primary, self.standby):
                self.network.cut(sender, receiver)
            return fault == "primary cut off"
        return True

    def end(self, fault):
        if fault in ("kill", "SIGTERM"):
            self.daemons[self.primary].process.wait(READY_S)
            self.daemons[self.primary] = self.start(self.primary)
        elif fault == "freeze":
            time.sleep(FROZEN_S)
            self.daemons[self.primary].process.send_signal(signal.SIGCONT)
        elif fault in CUTS:
            for place in "ab":
                self.network.restore(place)

    def check(self):
        """Ends the trainer; every answered push is in the model once."""
        self.trainer.send_signal(signal.SIGTERM)
        if self.trainer.wait(READY_S) != 0:
            raise Failed("counting_trainer failed")
        until("the standby is in sync", lambda: in_sync(self.daemons[self.primary]))
        done = self.psd("export", self.daemons[self.primary], "--to", self.folder / "model")
        if done.returncode != 0:
            raise Failed(f"psd export: {last_line(done.stderr)}")
        tensors = of_tests("safetensors_file").safetensors(self.folder / "model")
        wrong = self.ledgers.findings([self.ledger]) + self.ledgers.count_findings(
            [self.ledger], {name: values for name, (_, values) in tensors.items()})
        if wrong:
            raise Failed(f"the ledgers show a violation: {wrong[0]}")


def gaps(programs, fault, times):
    """Seconds for that many faults of one pair."""
    if not (programs.folder / "counting_trainer").is_file():
        raise Failed("counting_trainer is missing: build it with the tests (PSD_TESTS=ON)")
    with contextlib.ExitStack() as stack:
        network = None
        if fault in CUTS:
            network = of_tests("namespaces").Network(PLACES)
            stack.callback(network.close)
        pair = Pair(programs, network)
        stack.callback(pair.close)
        pair.until_answered(20)
        found = [pair.disturb(fault) for _ in range(times)]
        pair.check()
        return found


def reason_without_cuts():
    """The reason why cuts are not measured; None if they are."""
    return of_tests("namespaces").reason_to_skip(("nft", "nftables"))
