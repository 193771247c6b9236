"""The group of scripts/bench that measures rows of embedding tables."""

from bench_group import Group
from bench_programs import Failed
from bench_report import Row, microseconds

WAYS = {"ring": ("unix", "shm", "ring"), "Unix": ("unix", "rpc", "unix"), "TCP": ("tcp", "rpc", "tcp")}
IDS, SMALL, DIM = 100_000, 2_048, 32
ROWS, ROWS_MADE = 10**6, 10**7
SKEWS = {"": (0, tuple(WAYS)), ", Zipf 1.05": (1.05, ("Unix",))}
TABLES = 26
BEYOND_VALUES = 56  # bytes of a row in the daemon's memory beyond its values
POLICY = {"policy": {"type": "hogwild"}, "optimizer": {"type": "sgd", "lr": 0.01}}


def million_rows(value):
    return f"{value / 1e6:.1f} M rows/s"


def bytes_shown(value):
    return f"{value:.0f} bytes"


class Rows(Group):
    name = "rows"
    title = "Rows of embedding tables"
    summary = ("pull of rows, Unix",)
    text = f"""`psd-trainer bench rows`: one trainer, hogwild, plain SGD, a table of 10⁶ rows of {DIM} float32, {IDS:,} random ids a call. *bare*: two
processes without psd, the same table and transport. New rows: {SMALL:,} a push, up to 10⁷; *doubling*: the pause of a table that
doubles its lines at that size."""
    rounds_max = 5

    def measurements(self):
        work = {}
        for skewed, (skew, ways) in SKEWS.items():
            for way in ways:
                self.pair(work, f"{way}{skewed}", lambda w=way, s=skew: self.rows_of(w, skew=s))
                for operation in ("pull", "push"):
                    work[f"bare {operation}, {way}{skewed}"] = lambda w=way, o=operation, s=skew: self.programs.reference(
                        "rows", transport=WAYS[w][2], direction=o, rows=ROWS, ids=IDS, dim=DIM, skew=s)["rows_per_s"]
        for way in ("ring", "Unix"):
            self.pair(work, f"{way}, {TABLES} tables", lambda w=way: self.rows_of(w, tables=TABLES))
        self.pair(work, "ring, creators", lambda: self.rows_of("ring", creators=1))
        work["small"] = lambda: self.rows_of("Unix", ids=SMALL)["pull"]["median_s"]
        work["bare small"] = lambda: self.programs.reference("rows", transport="unix", direction="pull", rows=ROWS, ids=SMALL,
                                                             dim=DIM)["median_s"]
        work["empty call"] = lambda: self.programs.fresh("unix", "latency")["median_s"]
        work["in process"] = lambda: self.programs.rows_in_process("lookups", rounds=15)["gather"]["median"]
        for figure in ("longest_s", "p999_s", "median_s", "beyond_values"):
            work[f"create {figure}"] = lambda f=figure: self.once("create", self.create)[f]
        work["doubling"] = lambda: self.once("doubling", lambda: self.programs.rows_in_process(
            "inserts", rows=self.rows_made()))["doubling_longest_s"]
        return work

    @staticmethod
    def pair(work, name, run):
        """Two figures of one run: of pulls, then of the pushes between them."""
        kept = {}

        def pull():
            kept.clear()
            kept.update(run())
            return kept["pull"]["rows_per_s"]
        work[f"pull, {name}"] = pull

        def push():
            if not kept:
                raise Failed("the run that measures both did not end well")
            return kept["push"]["rows_per_s"]
        work[f"push, {name}"] = push

    def once(self, name, run):
        """A slow measurement, in the first round only."""
        kept = self.__dict__.setdefault("kept", {})
        if name not in kept:
            kept[name] = run()
        return kept[name]

    def rows_made(self):
        return ROWS if self.quick else ROWS_MADE

    def rows_of(self, way, **flags):
        socket, transport, _ = WAYS[way]
        flags = {"ids": IDS, "dim": DIM, "table_rows": ROWS, **flags}
        return self.programs.fresh(socket, "rows", POLICY, transport=transport, **flags)

    def create(self):
        with self.programs.daemon(POLICY) as daemon:
            report = self.programs.trainer(daemon.address["unix"], "rows", create=True, ids=SMALL, dim=DIM,
                                           table_rows=self.rows_made(), transport="shm")
            table = daemon.status()["tables"][0]
        return {**report["push"], "beyond_values": (table["row_bytes"] + table["index_bytes"]) / table["rows"] - 4 * DIM}

    def rows(self, medians):
        rows = []
        for skewed, (_, ways) in SKEWS.items():
            for operation in ("pull", "push"):
                for way in ways:
                    wanted = None if skewed or (operation, way) == ("push", "ring") else 0.8
                    rows.append(Row.at_least(f"{operation} of rows, {way}{skewed}", medians[f"{operation}, {way}{skewed}"], "bare",
                                             medians[f"bare {operation}, {way}{skewed}"], wanted, million_rows))
        for way in ("ring", "Unix"):
            for operation in ("pull", "push"):
                rows.append(Row.at_least(f"{operation}, {way}, {TABLES} tables", medians[f"{operation}, {way}, {TABLES} tables"],
                                         "one table", medians[f"{operation}, {way}"], 0.9, million_rows))
        rows.append(Row.at_most(f"round trip of {SMALL:,} rows, Unix", medians["small"], "bare", medians["bare small"], 1.2, microseconds))
        rows.append(Row.at_most(f"round trip of {SMALL:,} rows, Unix", medians["small"], "an empty call, and the rows in process",
                                self.sum_of(medians), None, microseconds))
        rows.append(Row.at_most(f"longest answer to {SMALL:,} new rows, ring", medians["create longest_s"], "doubling",
                                medians["doubling"], 0.02, microseconds))
        rows.append(Row.at_most(f"p99.9 of {SMALL:,} new rows, ring", medians["create p999_s"], "median", medians["create median_s"],
                                5, microseconds))
        rows.append(Row.at_least("pull, ring, while another trainer makes rows", medians["pull, ring, creators"], "alone",
                                 medians["pull, ring"], 0.7, million_rows))
        rows.append(Row.ceiling("memory of a row beyond its values", medians["create beyond_values"], BEYOND_VALUES, bytes_shown))
        return rows

    @staticmethod
    def sum_of(medians):
        parts = medians["empty call"], medians["in process"]
        return None if None in parts else parts[0] + SMALL / parts[1]
