"""The groups of scripts/bench without a daemon: the optimizers' and aggregators' loops on the CPU, and kernels on a GPU."""

from bench_group import MIB, SIZE, Group
from bench_report import Row, gigabytes, millions


class Optimizers(Group):
    name = "optimizers"
    title = "Loops of the optimizers"
    text = """One thread over arrays of 64 MiB, in process; the bytes that the loop reads and writes, over time. *triad*: STREAM's `a[i] = b[i] + s · c[i]`,
whose fetch of the result is not counted, so a ratio can be above 1. *ftrl_racing*: as under `hogwild`."""
    names = ("sgd", "momentum", "adagrad", "adam", "lion", "ftrl", "ftrl_racing")

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
