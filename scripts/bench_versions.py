"""The group of scripts/bench that measures published versions: patches in process, versions behind slow links, and trees of replicas."""

import contextlib
import itertools
import os
import shutil

from bench_group import SIZE, Group
from bench_programs import background, processor_seconds
from bench_report import Row, gigabytes, mebibytes, milliseconds, seconds


class Publish(Group):
    name = "publish"
    title = "Patches between published versions"
    text = """`psd-bench-patches`: one thread, in process, a tensor of 256 MiB in bf16 of which random elements change. *entropy*: of the positions, and 16
bits for each value. Rates are in bytes of the tensor, of both tensors for *compare* and *make*. *read*: a loop that sums the words of the same
buffers. *publish to visible*: a store of weights publishes 256 MiB of 16-bit values; seconds until a reader behind a link of that rate has the
version, by a patch, *whole*, or by `test/bench/published.py`'s *xor*: XOR and zstd through a directory, whose writer keeps the version
before. *16 readers*: seconds until all have a version of which 1 % changed, directly, or at the leaves of a binary tree of 7 replicas on
their side of the link. *CPU of a push*: of a daemon that publishes bf16 every 20 pushes of 64 MiB, alone and with that tree. *flip*: a
reader of shared memory changes to the next version of 256 MiB that `psd follow --shared` has written (`test/bench/shared_flip.py`)."""
    rates = ("read both", "read", "compare", "make", "sum", "verify", "apply", "merge")
    densities = (0.003, 0.01, 0.03, 0.08)
    links = {"200mbit": "0.2 Gbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s"}
    ways = ("patch", "whole", "xor")
    rounds_max = 3
    replicas = 7
    readers = 16
    shared_links = ("200mbit", "1gbit")

    def measurements(self):
        work = {name: lambda n=name: self.figure(n, n.replace(" ", "_") + "_bytes_per_s") for name in self.rates}
        for density in self.densities:
            for what in ("bytes", "entropy_bytes"):
                work[f"{what} {density}"] = lambda d=density, w=what: next(
                    each[w] for each in self.report["sizes"] if each["density"] == d)
        for replicas in (0, self.replicas):
            work[f"push {replicas}"] = lambda n=replicas: self.push(n)
        work["flip"] = lambda: self.programs.shared_flip(16 if self.quick else 256)["median_s"]
        missing = "root" if os.getuid() != 0 else next((program for program in ("ip", "tc") if not shutil.which(program)), None)
        if missing:
            self.unmeasured.append(f"versions behind a slow link: needs {missing}")
            return work
        for link, density, way in itertools.product(self.links, (self.densities[0], self.densities[-1]), self.ways):
            work[f"{way} {link} {density}"] = lambda at=link, d=density, w=way: self.published(at, d, way=w)
        for link, (readers, replicas) in itertools.product(self.shared_links, self.fleets()):
            work[f"{readers} {replicas} {link}"] = lambda at=link, r=readers, n=replicas: self.published(at, 0.01, readers=r, replicas=n)
        return work

    def fleets(self):
        """Readers and replicas of each measurement behind one link."""
        return ((1, 0), (self.readers, 0), (self.readers, self.replicas))

    def published(self, link, density, **more):
        """Seconds from the call that publishes a version until all readers behind the link have it."""
        return self.programs.published(rate=link, density=density, size=16 if self.quick else 256, versions=3, **more)["seconds"]

    def push(self, replicas):
        """Processor seconds of a daemon for each push."""
        config = {"policy": {"type": "locked"}, "optimizer": {"type": "sgd", "lr": 0.001},
                  "publish": {"every_updates": 20, "as": "bf16", "keep": 2}}
        with contextlib.ExitStack() as stack:
            daemon = stack.enter_context(self.programs.daemon(config))
            addresses = [daemon.address["unix"]]
            for each in range(replicas):
                address = f"unix://{daemon.socket}.{each}"
                stack.enter_context(background([daemon.psd, "--replica-of", addresses[(each + 1) // 2], "--listen", address]))
                addresses.append(address)
            self.programs.trainer(daemon.address["unix"], "push", transport="rpc", size=SIZE, seconds=4 * self.programs.seconds)
            return processor_seconds(daemon.process.pid) / daemon.status()["counters"]["gradients"]

    def figure(self, name, key):
        """The first figure of a round runs the program."""
        if name == self.rates[0]:
            self.report = self.programs.patches()
        return self.report[key]

    def rows(self, medians):
        rows = [Row.at_most(f"size, {density * 100:g} % changed", medians[f"bytes {density}"], "entropy",
                            medians[f"entropy_bytes {density}"], 1.1, mebibytes) for density in self.densities]
        return [*rows,
                Row.at_least("compare", medians["compare"], "read both", medians["read both"], 0.5, gigabytes),
                Row.at_least("make, 1 % changed", medians["make"], "read both", medians["read both"], None, gigabytes),
                Row.at_least("sum of content", medians["sum"], "read", medians["read"], 0.5, gigabytes),
                Row.floor("apply, 1 % changed", medians["apply"], 20e9, gigabytes),
                Row.at_least("apply, 1 % changed", medians["apply"], "read", medians["read"], None, gigabytes),
                Row.at_least("verify, 1 % changed", medians["verify"], "apply", medians["apply"], None, gigabytes),
                Row.at_least("merge two, 1 % changed in each", medians["merge"], "apply", medians["apply"], None, gigabytes),
                Row.ceiling("flip", medians["flip"], 0.001, milliseconds),
                *self.visible(medians), *self.tree(medians),
                Row.at_most("CPU of a push, with a tree of replicas", medians[f"push {self.replicas}"], "none", medians["push 0"], 1.1, milliseconds)]

    def visible(self, medians):
        rows = []
        for link, density in itertools.product(self.links, (self.densities[0], self.densities[-1])):
            took = {way: medians.get(f"{way} {link} {density}") for way in self.ways}
            if took["patch"] is None:
                continue
            for way in ("whole", "xor"):
                rows.append(Row.at_most(f"publish to visible, {self.links[link]}, {density * 100:g} %", took["patch"], way, took[way], 1, milliseconds))
        return rows

    def tree(self, medians):
        rows = []
        for link in self.shared_links:
            one, direct, tree = (medians.get(f"{readers} {replicas} {link}") for readers, replicas in self.fleets())
            if one is None:
                continue
            rows.append(Row.at_most(f"{self.readers} readers behind a tree, {self.links[link]}", tree, "one reader", one, 1.3, seconds))
            rows.append(Row.at_most(f"{self.readers} readers without it, {self.links[link]}", direct, "one reader", one, None, seconds))
        return rows
