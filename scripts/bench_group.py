"""Base of the groups of scripts/bench. A group is a class with a title, a text on how to read it, `measurements()`
(name to a function that takes one sample) and `rows(medians)`, or `tables(medians)` if its tables have another layout.
`summary` names the rows shown at the head of the page."""

import itertools

from bench_report import table

MIB = 1 << 20
SIZE = 64 * MIB


class Group:
    """State of every group. `rounds_max` bounds the rounds of a slow group."""

    rounds_max = 1000
    summary = ()

    def __init__(self, programs, quick):
        self.programs = programs
        self.quick = quick
        self.unmeasured = []  # omitted measurements, with the reason

    def seconds(self):
        """Duration of one measurement."""
        return self.programs.seconds

    def tables(self, medians, rounds=()):
        """Markdown. `rounds`: the samples of each round, by name, like `medians` over all rounds; None: not measured."""
        of_rounds = zip(*(self.rows(each) for each in rounds))
        rows = [row.over(each) for row, each in itertools.zip_longest(self.rows(medians), of_rounds, fillvalue=())]
        return [table(rows)] if rows else []

    def rate(self, socket, operation, size=SIZE, config=None, **flags):
        """Bytes per second of the median operation."""
        report = self.programs.fresh(socket, operation, config, size=size, **flags)
        return report["bytes"] / report["median_s"]
