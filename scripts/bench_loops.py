"""The groups of scripts/bench without a daemon: the optimizers' and aggregators' loops on the CPU, and kernels on a
GPU."""

from bench_group import MIB, SIZE, Group
from bench_report import Row, gigabytes, millions


class Optimizers(Group):
    name = "optimizers"
    title = "Loops of the optimizers"
    text = """One thread over arrays of 64 MiB, in process. A rate is the bytes that the loop reads and writes, over time. Beside it is
STREAM's triad `a[i] = b[i] + s · c[i]`, counted alike (12 bytes an element, as for SGD). The triad's result is fetched before it is
overwritten, which is not counted. An optimizer works in place and wastes nothing, so its ratio can be above 1."""
    names = ("sgd", "momentum", "adagrad", "adam")

    def measurements(self):
        return {name: lambda n=name: self.programs.reference("memory", operation=n, size=SIZE)["bytes_per_s"]
                for name in (*self.names, "triad")}

    def rows(self, medians):
        return [Row.at_least(name, medians[name], "triad", medians["triad"], None, gigabytes) for name in self.names]


class Kernels(Group):
    name = "cuda"
    title = "Kernels on a GPU"
    text = """`psd-bench-cuda`: bytes that an optimizer's fused kernel must read and write, over time, against a device-to-device copy (8
bytes a parameter) in the same run. Figures are medians of seven rounds by the device's events. A parameter costs SGD 12 bytes,
momentum and Adagrad 20, Adam 28. Hogwild is plain SGD by several streams on the same weights, all streams together against one.
Each stream has gradients of its own in slices of 4 MiB. Rows are of an embedding table of a million, 16,384 random ones a call from
host memory to host memory, by the host's clock; against the same calls on rows in host memory.

CUDA 13's `nvcc -Xptxas -v` reports for sm_80 and sm_90 that no kernel of an optimizer takes more than 54 registers a thread, of rows
64, and that none spills. So four blocks of 256 threads and more share a multiprocessor. The kernel for the entries of a sparse codec takes 14
and 16 registers."""
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
        one, *several = self.report["hogwild"]
        rows = [Row.at_least(f"{each['optimizer']}, {each['elements'] // 10**6} million parameters", each["bytes_per_s"], "copy",
                             each["copy_bytes_per_s"], 0.9, gigabytes) for each in self.report["kernels"]]
        rows += [Row.at_least(f"hogwild, {each['streams']} streams", each["bytes_per_s"], "one stream", one["bytes_per_s"], None,
                              gigabytes) for each in several]
        return rows + [Row.at_least(f"rows of {each['dim']}, {each['operation']}", each["rows_per_s"], "in host memory",
                                    each["host_rows_per_s"], None, millions) for each in self.report["rows"]]


class Aggregators(Group):
    name = "aggregators"
    title = "Loops of the aggregators"
    text = """One thread combines gradients of 16 MiB each, as a synchronous round does, and applies the result by SGD. A rate is the bytes
that it must read and write, over time: each gradient and the weights read once, the weights written once. Beside it is STREAM's
triad. A median of many gradients is bound by its sorting network, and distances by the number of pairs, not by memory."""
    counts = (5, 16, 64)
    operations = ("mean", "trimmed_mean", "median", "distances")

    def measurements(self):
        work = {f"{operation}, {count} gradients": lambda o=operation, n=count: self.programs.reference(
            "combine", operation=o, gradients=n, size=16 * MIB)["bytes_per_s"] for operation in self.operations for count in self.counts}
        work["triad"] = lambda: self.programs.reference("memory", operation="triad", size=SIZE)["bytes_per_s"]
        return work

    def rows(self, medians):
        return [Row.at_least(name, value, "triad", medians["triad"], None, gigabytes)
                for name, value in medians.items() if name != "triad"]
