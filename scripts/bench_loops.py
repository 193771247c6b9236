"""The groups of scripts/bench without a daemon: the optimizers' and aggregators' loops on the CPU, patches between
versions, and kernels on a GPU."""

import itertools
import os
import shutil

from bench_group import MIB, SIZE, Group
from bench_report import Row, gigabytes, mebibytes, millions, milliseconds


class Optimizers(Group):
    name = "optimizers"
    title = "Loops of the optimizers"
    text = """One thread over arrays of 64 MiB, in process; the bytes that the loop reads and writes, over time. *triad*: STREAM's `a[i] = b[i] + s · c[i]`,
whose fetch of the result is not counted, so a ratio can be above 1."""
    names = ("sgd", "momentum", "adagrad", "adam")

    def measurements(self):
        return {name: lambda n=name: self.programs.reference("memory", operation=n, size=SIZE)["bytes_per_s"]
                for name in (*self.names, "triad")}

    def rows(self, medians):
        return [Row.at_least(name, medians[name], "triad", medians["triad"], None, gigabytes) for name in self.names]


class Kernels(Group):
    name = "cuda"
    title = "Kernels on a GPU"
    text = """`psd-bench-cuda`: bytes that a fused kernel must read and write, over time (a parameter costs SGD 12 bytes, momentum and Adagrad 20, Adam
28), beside a device-to-device copy. *hogwild*: several streams on the same weights, slices of 4 MiB. *rows*: 16,384 random ones of a
million a call, from and to host memory."""
    rounds_max = 1

    def measurements(self):
        self.report = None
        return {"kernels": self.run}

    def run(self):
        """Runs all at once; the program takes the medians. Returns the number of figures."""
        self.report = self.programs.cuda_kernels()
        if self.report is None:
            self.unmeasured.append("the GPU's kernels: no GPU on this machine, or psd was built without CUDA")
            return 0
        self.unmeasured += self.report["unmeasured"]
        return sum(len(self.report[kind]) for kind in ("kernels", "hogwild", "rows"))

    def rows(self, medians):
        if self.report is None:
            return []
        one, *_, most = self.report["hogwild"]
        dims = [each["dim"] for each in self.report["rows"]]
        rows = [Row.at_least(f"{each['optimizer']}, {each['elements'] // 10**6} million parameters", each["bytes_per_s"], "copy",
                             each["copy_bytes_per_s"], 0.9, gigabytes) for each in self.report["kernels"]]
        rows.append(Row.at_least(f"hogwild, {most['streams']} streams", most["bytes_per_s"], "one stream", one["bytes_per_s"], None, gigabytes))
        return rows + [Row.at_least(f"rows of {each['dim']}, {each['operation']}", each["rows_per_s"], "in host memory",
                                    each["host_rows_per_s"], None, millions)
                       for each in self.report["rows"] if each["dim"] in (min(dims), max(dims))]


class Aggregators(Group):
    name = "aggregators"
    title = "Loops of the aggregators"
    text = """One thread combines gradients of 16 MiB each and applies the result by SGD; a rate counts each gradient and the weights read once, the
weights written once. *triad*: STREAM's."""
    counts = (5, 64)
    operations = ("mean", "trimmed_mean", "median", "distances")

    def measurements(self):
        work = {f"{operation}, {count} gradients": lambda o=operation, n=count: self.programs.reference(
            "combine", operation=o, gradients=n, size=16 * MIB)["bytes_per_s"] for operation in self.operations for count in self.counts}
        work["triad"] = lambda: self.programs.reference("memory", operation="triad", size=SIZE)["bytes_per_s"]
        return work

    def rows(self, medians):
        return [Row.at_least(name, value, "triad", medians["triad"], None, gigabytes)
                for name, value in medians.items() if name != "triad"]


class Publish(Group):
    name = "publish"
    title = "Patches between published versions"
    text = """`psd-bench-patches`: one thread, in process, a tensor of 256 MiB in bf16 of which random elements change. *entropy*: of the positions, and 16
bits for each value. Rates are in bytes of the tensor, of both tensors for *compare* and *make*. *read*: a loop that sums the words of the same
buffers. *publish to visible*: a store of weights publishes 256 MiB of 16-bit values; seconds until a reader behind a link of that rate has the
version, by a patch, *whole*, or by `test/bench/published.py`'s *xor*: XOR and zstd through a directory, whose writer keeps the version
before."""
    rates = ("read both", "read", "compare", "make", "sum", "verify", "apply", "merge")
    densities = (0.003, 0.01, 0.03, 0.08)
    links = {"200mbit": "0.2 Gbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s"}
    ways = ("patch", "whole", "xor")
    rounds_max = 3

    def measurements(self):
        work = {name: lambda n=name: self.figure(n, n.replace(" ", "_") + "_bytes_per_s") for name in self.rates}
        for density in self.densities:
            for what in ("bytes", "entropy_bytes"):
                work[f"{what} {density}"] = lambda d=density, w=what: next(
                    each[w] for each in self.report["sizes"] if each["density"] == d)
        missing = "root" if os.getuid() != 0 else next((program for program in ("ip", "tc") if not shutil.which(program)), None)
        if missing:
            self.unmeasured.append(f"versions behind a slow link: needs {missing}")
            return work
        for link, density, way in itertools.product(self.links, (self.densities[0], self.densities[-1]), self.ways):
            work[f"{way} {link} {density}"] = lambda at=link, d=density, w=way: self.published(at, d, w)
        return work

    def published(self, link, density, way):
        """Seconds from the call that publishes a version until a reader behind the link has it."""
        return self.programs.published(rate=link, density=density, way=way, size=16 if self.quick else 256, versions=3)["seconds"]

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
                *self.visible(medians)]

    def visible(self, medians):
        rows = []
        for link, density in itertools.product(self.links, (self.densities[0], self.densities[-1])):
            seconds = {way: medians.get(f"{way} {link} {density}") for way in self.ways}
            if seconds["patch"] is None:
                continue
            for way in ("whole", "xor"):
                rows.append(Row.at_most(f"publish to visible, {self.links[link]}, {density * 100:g} %", seconds["patch"], way, seconds[way], 1, milliseconds))
        return rows
