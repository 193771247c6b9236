"""The group of scripts/bench that trains over a slow network: nearby learners, and a distant daemon."""

import contextlib
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time

from bench_group import SIZE, Group
from bench_programs import PROGRAM_S, READY_S, Daemon, Failed, certificate_of, last_line
from bench_report import Row, gigabytes

LEARNERS = 2
RATE, ROUND_TRIP_MS = "20mbit", 100
POLL_S = 0.01
PORT = 5500  # unused elsewhere in these namespaces
RELAY = pathlib.Path(__file__).resolve().parents[1] / "test" / "bench" / "delay_relay.py"
TEXT = "LICENSE"
MODEL = "gpt:layers=4,width=128,heads=4,context=64,vocabulary=256,dropout=0"
PERIOD, FRAGMENTS, DELAY = 50, 5, 8
INNER = {"type": "adamw", "lr": 0.001}
OUTER = {"type": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
FOUR_BITS = {"push": {"default": "e3m0"}}

# By name: policy, codecs, and steps of a learner.
RUNS = {
    "sync, float32": ({"type": "sync"}, None, 12),
    "diloco, float32": ({"type": "diloco", "period": PERIOD, "inner": INNER}, None, 200),
    "diloco, four bits": ({"type": "diloco", "period": PERIOD, "inner": INNER, "deltas": "e3m0"}, FOUR_BITS, 200),
    "diloco, four bits, fragments": ({"type": "diloco", "period": PERIOD, "inner": INNER, "deltas": "e3m0", "fragments": FRAGMENTS,
                                      "delay": DELAY, "blend": 0.5}, FOUR_BITS, 200),
}
TARGETS = {"diloco, four bits, fragments": 0.9}
# Settings that saturate a fast path of the same latency: by name flags of psd-trainer, and the share of the link to
# reach.
WIDE_RATE, WIDE_BYTES_S, WIDE_S = "1gbit", 125e6, 8
WIDE = {"as it is": ({}, 0.7), "window 16, 4 connections": ({"window": 16, "connections": 4}, 0.8), "TLS, as it is": ({}, 0.7)}
WARM_UP = 0.25  # of the steps
COUNTED = (0.375, 0.875)  # the steps between which bytes are counted: whole periods
FEWER_BYTES = ("diloco, four bits", "diloco, four bits, fragments")
FEWER_BYTES_TARGET = 300


def ip(*arguments):
    done = subprocess.run(["ip", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"ip {' '.join(map(str, arguments))}: {last_line(done.stderr)}")


def namespace(place):
    return f"psd-bench-{os.getpid()}-{place}"


def within(place):
    return ["ip", "netns", "exec", namespace(place)]


class Network(Group):
    name = "network"
    title = "A slow network"
    text = f"""{LEARNERS} learners, one thread each, behind links of {RATE.removesuffix("mbit")} Mbit/s and a round trip of
{ROUND_TRIP_MS} ms; *near*: over loopback. Steps per second of one,
`{MODEL}` (834,304 parameters), batches of 8,
`period` {PERIOD}. *four bits*: `e3m0` pushed and as `deltas`; *fragments*: {FRAGMENTS}, `delay` {DELAY}, `blend` 0.5. *fewer bytes*: of the link, headers
included, both ways. Last rows: 64 MiB in messages over 1 Gbit/s at the same round trip."""
    rounds_max = 3

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.link_bytes = {}  # by name of the run, per step of a remote learner

    def measurements(self):
        missing = "root" if os.getuid() != 0 else next((program for program in ("ip", "tc") if not shutil.which(program)), None)
        if missing:
            self.unmeasured.append(f"a slow network: needs {missing}")
            return {"nothing": lambda: 0}
        work = {}
        for name in RUNS:
            work[f"{name} near"] = lambda n=name: self.rate_of(n, slow=False)
            work[f"{name} far"] = lambda n=name: self.rate_of(n, slow=True)
        for operation in ("pull", "push"):
            for name in WIDE:
                work[f"{operation} {name}"] = lambda o=operation, n=name: self.wide(o, n)
        return work

    def wide(self, operation, name):
        """Bytes per second of 64 MiB over a fast path, in the same direction."""
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psd-bench-")))
            tls, flags = name.startswith("TLS"), dict(WIDE[name][0])
            config = {"policy": {"type": "locked"}, "shards": 4, "insecure": True}
            if tls:
                certificate, key = certificate_of("10.78.0.1", folder)  # where far() puts it
                config |= {"listen": [f"unix://{folder / 'psd.sock'}", "tls://127.0.0.1:0"],
                           "tls": {"certificate": str(certificate), "key": str(key)}}
                flags["tls_ca"] = certificate
            daemon = Daemon(self.programs.folder / "psd", folder, config)
            stack.callback(daemon.end)
            daemon.await_ready()
            socket = daemon.socket
            if tls:  # a Unix socket, the only way into another namespace, has no TLS
                socket = folder / "relayed.sock"
                self.relay(stack, socket, daemon.address["tcp"].removeprefix("tcp://"), 0)
            address = self.far(stack, 0, socket, WIDE_RATE)
            if tls:
                address = address.replace("tcp://", "tls://")
            command = self.programs.trainer_arguments(address, operation, transport="rpc", size=SIZE, seconds=WIDE_S, **flags)
            report = self.programs.run([*within("home0"), *command], WIDE_S)
            return report["bytes"] / report["median_s"]

    def rate_of(self, name, slow):
        policy, codecs, steps = RUNS[name]
        config = {"policy": policy, "shards": 4, "optimizer": {"type": "adam", "lr": 0.001} if policy["type"] == "sync" else OUTER, "insecure": True}
        if codecs:
            config["codecs"] = codecs
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psd-bench-")))
            daemon = Daemon(self.programs.folder / "psd", folder, config)
            stack.callback(daemon.end)
            daemon.await_ready()
            addresses = [daemon.address["tcp"]] * LEARNERS
            if slow:
                addresses = [self.far(stack, learner, daemon.socket) for learner in range(LEARNERS)]
            rate, link_bytes = self.train(folder, addresses, steps, slow)
            if slow:
                self.link_bytes[name] = link_bytes
            return rate

    def far(self, stack, learner, socket, rate=RATE):
        """A learner's namespace with a slow link to a relay to the daemon; returns the daemon's address from there."""
        home, there = namespace(f"home{learner}"), namespace(f"there{learner}")
        for place in (there, home):
            ip("netns", "add", place)
            stack.callback(lambda p=place: subprocess.run(["ip", "netns", "del", p], capture_output=True, check=False))
            ip("-n", place, "link", "set", "lo", "up")
        ip("-n", there, "link", "add", "net", "type", "veth", "peer", "name", "net", "netns", home)
        for number, place in enumerate((there, home), 1):
            ip("-n", place, "addr", "add", f"10.78.{learner}.{number}/24", "dev", "net")
            ip("-n", place, "link", "set", "net", "up")
            ip("netns", "exec", place, "tc", "qdisc", "add", "dev", "net", "root", "tbf", "rate", rate,
               "burst", "64kb" if rate == RATE else "1mb", "latency", "100ms")
        self.relay(stack, PORT, socket, ROUND_TRIP_MS / 2, within(f"there{learner}"))
        return f"tcp://10.78.{learner}.1:{PORT}"

    def relay(self, stack, here, there, delay_ms, within=()):
        relay = subprocess.Popen([*within, sys.executable, RELAY, str(here), str(there), str(delay_ms)],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        stack.callback(lambda: (relay.kill(), relay.wait()))
        if not select.select([relay.stdout], [], [], READY_S)[0] or relay.stdout.readline().strip() != "listening":
            raise Failed("the relay did not start")

    def train(self, folder, addresses, steps, slow):
        running = []
        for learner, address in enumerate(addresses):
            metrics = folder / f"metrics-{learner}"
            program = [*(within(f"home{learner}") if slow else []), str(self.programs.folder / "psd-trainer"), "train", "--server", address,
                       "--rank", str(learner), "--world-size", str(LEARNERS), "--model", MODEL, "--threads", "1", "--steps", str(steps),
                       "--data", f"text:{TEXT}:level=char,length=64,vocabulary=256", "--batch-size", "8", "--metrics", str(metrics)]
            running.append((subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True), metrics))
        rates = []
        try:
            link_bytes = self.bytes_per_step(*running[0], steps) if slow else None
            for process, metrics in running:
                errors = process.communicate(timeout=PROGRAM_S + READY_S + steps)[1]
                if process.returncode != 0:
                    raise Failed(f"psd-trainer train: {last_line(errors)}")
                lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
                lines = [line for line in lines if "samples_per_s" in line][int(WARM_UP * steps):-1]  # the last step waits for all
                rates.append(len(lines) / sum(line["batch"] / line["samples_per_s"] for line in lines))
        except subprocess.TimeoutExpired:
            raise Failed("psd-trainer train did not end in time") from None
        finally:
            for process, _ in running:
                process.kill()
                process.wait()
        return sum(rates) / len(rates), link_bytes

    def bytes_per_step(self, process, metrics, steps):
        """Bytes on the link of the first learner, in both directions, during the steps that are COUNTED."""
        counts = []
        for share in COUNTED:
            give_up = time.monotonic() + PROGRAM_S + READY_S + steps
            while not metrics.exists() or metrics.read_text(encoding="utf-8").count("samples_per_s") < int(share * steps):
                if process.poll() is not None or time.monotonic() > give_up:
                    raise Failed("psd-trainer train did not come far enough to count its bytes")
                time.sleep(POLL_S)
            files = [f"/sys/class/net/net/statistics/{way}_bytes" for way in ("rx", "tx")]
            told = subprocess.run([*within("home0"), "cat", *files], capture_output=True, text=True, check=True).stdout
            counts.append(sum(map(int, told.split())))
        return (counts[1] - counts[0]) / (int(COUNTED[1] * steps) - int(COUNTED[0] * steps))

    def rows(self, medians):
        if "nothing" in medians:
            return []
        learners = [Row.at_least(name, medians[f"{name} far"], "near", medians[f"{name} near"], TARGETS.get(name),
                                 lambda rate: f"{rate:.2f} steps/s") for name in RUNS]
        first = next(iter(RUNS))
        fewer = [Row.at_least(f"fewer bytes, {name}", 1 / self.link_bytes[name], first, 1 / self.link_bytes[first], FEWER_BYTES_TARGET,
                              lambda steps: f"{1e-3 / steps:.1f} kB per step") for name in FEWER_BYTES]
        return learners + fewer + [Row.at_least(f"{operation} of 64 MiB over {WIDE_RATE.removesuffix('gbit')} Gbit/s, {name}", medians[f"{operation} {name}"],
                                        "the link", WIDE_BYTES_S, target, gigabytes)
                           for operation in ("pull", "push") for name, (_, target) in WIDE.items()]
