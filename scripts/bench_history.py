"""The history of scripts/bench, a line of JSON for each run, and the trend of each target on the page."""

import dataclasses
import json
import math
import os
import re

from bench_programs import Failed
from bench_report import Row, anchor

BARS = "▁▂▃▄▅▆▇█"
STEPS = 4  # of a bar's height for a factor of 2; half of BARS is for figures that meet their target
RUNS_SHOWN = 24
ITS_TARGET = "its target"  # the reference of a figure without another one

TEXT = """## Trend

Targets that several runs in [{name}]({link}) measured (`scripts/bench --json` appends one). `ratio` is the
newest. Each bar is a run, the newest on the right: `{meets}` and taller meet the target; a step of height is a factor of {factor:.2f}.
"""

HEAD = "| | reference | target | ratio | runs |\n|---|---|---|---|---|"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A target and its figure. Without a reference `ratio` is the figure divided by its target, and `limit` is 1."""

    group: str
    what: str
    reference: str
    ratio: float
    limit: float
    at_least: bool
    met: bool

    def key(self):
        return self.group, self.what, self.reference

    def target(self):
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"

    def bar(self):
        above, below = (self.ratio, self.limit) if self.at_least else (self.limit, self.ratio)
        steps = math.floor(math.log2(above / below) * STEPS) if above > 0 < below else STEPS if below <= 0 else -STEPS
        lowest, highest = (len(BARS) // 2, len(BARS) - 1) if self.met else (0, len(BARS) // 2 - 1)
        return BARS[min(max(len(BARS) // 2 + steps, lowest), highest)]

    @staticmethod
    def of_row(group, row):
        """The figure of a measured row with a target; else None."""
        if row.met is None:
            return None
        sign, _, target = row.target.partition(" ")
        reference = row.reference.partition(":")[0] if row.ratio else ITS_TARGET
        ratio = number(row.ratio) if row.ratio else round(number(row.value) / number(target), 4)
        return Figure(group, row.what, reference, ratio, number(target) if row.ratio else 1.0, sign == "≥", row.met)


def number(text):
    """The first number in the text, which may have commas between thousands."""
    return float(re.search(r"[0-9][0-9,]*(\.[0-9]+)?", text).group().replace(",", ""))


def figures_of(group, section):
    """All measured targets of the tables in a section of the page."""
    rows = filter(None, map(Row.read, section.splitlines()))
    return [figure for figure in (Figure.of_row(group, row) for row in rows) if figure]


def machine_of(table):
    """The machine in the table made by bench_report.machine()."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    facts = dict(cells)
    cores, _, memory = facts["cores, memory"].partition(", ")
    return {"cpu": facts["processor"], "cores": int(cores), "memory": memory, "system": facts["system"],
            "gpus": [value.partition(", driver")[0] for name, value in cells if name == "GPU"]}


@dataclasses.dataclass(frozen=True)
class Run:
    date: str
    commit: str
    changes: bool  # in the sources, beyond the commit
    version: str
    machine: dict
    device: str
    figures: list

    def place(self):
        """The key that comparable runs share."""
        gpus = () if self.device == "cpu" else tuple(self.machine["gpus"])
        return self.machine["cpu"], self.machine["cores"], self.device.partition(":")[0], gpus

    def place_shown(self):
        cpu, cores, device, gpus = self.place()
        return f"{cpu}, {cores} cores" + (f", parameters on {', '.join(gpus) or device}" if device != "cpu" else "")

    def line(self):
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


KINDS = {"str": str, "bool": bool, "dict": dict, "list": list, "float": (int, float), "int": int}


def checked(kind, document):
    """`document` as one of the data classes; ValueError names a field that is missing or has the wrong type."""
    if not isinstance(document, dict):
        raise ValueError("expected an object")
    wanted = {field.name: KINDS[getattr(field.type, "__name__", field.type)] for field in dataclasses.fields(kind)}
    for name, types in wanted.items():
        value = document.get(name)
        if not isinstance(value, types) or isinstance(value, bool) and types is not bool:
            raise ValueError(f"'{name}' is missing or of another type")
        if types is KINDS["float"] and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"'{name}' is {value}: expected a finite number, at least 0")
    unknown = next((name for name in document if name not in wanted), None)
    if unknown:
        raise ValueError(f"'{unknown}': unknown field")
    return kind(**document)


def read_line(text):
    run = checked(Run, json.loads(text))
    machine = run.machine
    if not isinstance(machine.get("cpu"), str) or type(machine.get("cores")) is not int or not isinstance(machine.get("gpus"), list):
        raise ValueError("'machine' lacks cpu, cores or gpus")
    return dataclasses.replace(run, figures=[checked(Figure, each) for each in run.figures])


def read(path):
    """The runs, oldest first; none if there is no file."""
    if not path.exists():
        return []
    runs = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"{path}: cannot be read: {error}") from None
    for place, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            runs.append(read_line(text))
        except ValueError as error:  # json.JSONDecodeError is one
            raise Failed(f"{path}:{place}: {error}; mend or delete the line") from None
    return runs


def append(path, run):
    """Appends a line, and leaves the existing lines unchanged."""
    try:
        before = path.read_bytes() if path.exists() else b""
        with open(path, "a", encoding="utf-8") as file:
            file.write(("\n" if before and not before.endswith(b"\n") else "") + run.line() + "\n")
    except OSError as error:
        raise Failed(f"{path}: cannot be written: {error.strerror}") from None


def trend(groups, runs, history, page):
    """The page's section for runs in ascending order; empty without runs."""
    if not runs:
        return ""
    link = os.path.relpath(history, page.parent)
    parts = [TEXT.format(name=history.name, link=link, meets=BARS[len(BARS) // 2], factor=2 ** (1 / STEPS))]
    for place in dict.fromkeys(run.place() for run in runs):
        parts.append(trend_of([run for run in runs if run.place() == place][-RUNS_SHOWN:], groups))
    return "\n".join(parts)


def trend_of(runs, groups):
    """The table of comparable runs."""
    first, last = runs[0], runs[-1]
    lines = [f"### {first.place_shown()}", "", f"{len(runs)} run(s), from {first.date} (commit {first.commit}, version {first.version}) to {last.date} "
             f"(commit {last.commit}, version {last.version})."]
    rows = []
    for group in groups:
        of_group = [[figure for figure in run.figures if figure.group == group.name] for run in runs]
        newest = next((figures for figures in reversed(of_group) if figures), [])
        bars = {figure: "".join(each.bar() for figures in of_group for each in figures if each.key() == figure.key()) for figure in newest}
        shown = [figure for figure in newest if len(bars[figure]) > 1]
        rows += [f"| **[{group.title}]({anchor(group.title)})** | | | | |"] * bool(shown)
        rows += [f"| {figure.what} | {figure.reference} | {figure.target()} | {figure.ratio:.2f} | {bars[figure]} |" for figure in shown]
    return "\n".join([*lines, *(["", HEAD, *rows] if rows else ["No target was measured twice."])]) + "\n"
