"""The page that scripts/bench writes: docs/reference/performance.md."""

import dataclasses
import datetime
import os
import platform
import re
import shutil
import statistics
import subprocess

BY_HAND_BEGIN = "<!-- by hand: kept when the page is generated -->"
BY_HAND_END = "<!-- end of what is by hand -->"
FIGURES = ("|", "Not measured:", "*Measured")  # the starts of the lines that follow a section's text

INTRODUCTION = """# Performance

psd's data path on one machine beside references without psd. `scripts/bench` writes this page.

{machine}

{summary}
A figure is the median over rounds, a ratio psd's figure divided by the reference's: the median of the ratios within a round. A missed
target is bold; [what limits it](#what-limits-it). Compare ratios, not figures, between machines.

On your machine: `psd-trainer bench pull --server tcp://host:5500` measures a running daemon that holds no other model; `scripts/bench`
measures everything in about {minutes} minutes.
"""

MACHINE = """| | |
|---|---|
| processor | {cpu} |
| cores, memory | {cores}, {memory} |
| system | {system} |"""


def gigabytes(value):
    return f"{value / 1e9:.2f} GB/s"


def millions(value):
    return f"{value / 1e6:.1f} million/s"


def mebibytes(value):
    return f"{value / (1 << 20):.1f} MiB"


def microseconds(value):
    return f"{value * 1e6:.1f} µs"


def milliseconds(value):
    return f"{value * 1e3:.2f} ms"


def seconds(value):
    return f"{value:.2f} s"


COLUMNS = 5


@dataclasses.dataclass
class Row:
    """One line of a table. `met` is None without a target or a figure."""

    what: str
    value: str
    reference: str
    ratio: str
    target: str
    met: bool | None
    quotient: float | None = dataclasses.field(default=None, compare=False)  # shown as `ratio`; None in a row that was read
    is_met: object = dataclasses.field(default=None, compare=False)  # of a quotient: whether it meets the target; None without one

    @staticmethod
    def compare(what, value, name, reference, target, show, sign, passes):
        """`show`: formats a figure; a pair: for psd's figure and for the reference's."""
        show, show_reference = show if isinstance(show, tuple) else (show, show)
        if value is None or reference is None:
            return Row(what, "not measured" if value is None else show(value), name, "", "", None)
        return Row(what, show(value), f"{name}: {show_reference(reference)}", "", f"{sign} {target:g}" if target else "", None,
                   is_met=(lambda ratio: passes(ratio, target)) if target else None).with_quotient(value / reference)

    def with_quotient(self, quotient):
        return dataclasses.replace(self, quotient=quotient, ratio=f"{quotient:.2f}", met=self.is_met(quotient) if self.is_met else None)

    def over(self, rounds):
        """This row with the medians over all rounds, and with the median of the ratios within each round: other load on
        the machine affects both sides of a round."""
        quotients = [row.quotient for row in rounds if row.quotient is not None]
        return self.with_quotient(statistics.median(quotients)) if self.quotient is not None and quotients else self

    @staticmethod
    def at_least(what, value, name, reference, target, show):
        return Row.compare(what, value, name, reference, target, show, "≥", lambda ratio, wanted: ratio >= wanted)

    @staticmethod
    def at_most(what, value, name, reference, target, show):
        return Row.compare(what, value, name, reference, target, show, "≤", lambda ratio, wanted: ratio <= wanted)

    @staticmethod
    def floor(what, value, target, show):
        if value is None:
            return Row(what, "not measured", "", "", "", None)
        return Row(what, show(value), "", "", f"≥ {show(target)}", value >= target)

    @staticmethod
    def ceiling(what, value, target, show):
        if value is None:
            return Row(what, "not measured", "", "", "", None)
        return Row(what, show(value), "", "", f"≤ {show(target)}", value <= target)

    def line(self):
        target = f"**{self.target}**" if self.met is False else self.target
        return f"| {self.what} | {self.value} | {self.reference} | {self.ratio} | {target} |"

    @staticmethod
    def read(line):
        """The row that line() formatted as `line`, or None."""
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        target = cells[-1].strip("*") if cells else ""
        if not line.startswith("| ") or len(cells) != COLUMNS or not cells[0] or (target and target[0] not in "≥≤"):
            return None
        return Row(*cells[:-1], target, target == cells[-1] if target else None)


def table(rows):
    return "\n".join(["| | psd | reference | ratio | target |", "|---|---|---|---|---|", *(row.line() for row in rows)])


def section(group, tables, failures, stamp):
    """One group as Markdown."""
    lines = [heading(group), "", *([group.text, ""] if tables else [])]
    lines += [part for each in tables for part in (each, "")]
    lines += [f"Not measured: {reason}.  " for reason in [*group.unmeasured, *failures]]
    if tables:
        lines += [*([""] if lines[-1] else []), stamp]
    return "\n".join(lines).rstrip() + "\n"


def heading(group):
    return f"## {group.title}"


def with_text_of(group, section_before):
    """A section of the existing page, with its tables, under the group's current text; without tables the text is left out."""
    lines = section_before.splitlines()
    figures = next((at for at, line in enumerate(lines) if line.startswith(FIGURES)), len(lines))
    text = [group.text, ""] if any(line.startswith("|") for line in lines[figures:]) else []
    return "\n".join([heading(group), "", *text, *lines[figures:]]).rstrip() + "\n"


def anchor(title):
    """The anchor of a heading on GitHub."""
    return "#" + re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def summary(groups, sections):
    """The table at the head of the page, from the sections' rows that the groups name, and how many of each section miss their
    target."""
    chosen, missed, count, targets = [], [], 0, 0
    for group in groups:
        rows = [row for row in map(Row.read, sections.get(heading(group), "").splitlines()) if row]
        # The first row of a name: others of that name have other references.
        first = {row.what: row for row in reversed(rows)}
        chosen += [first[name] for name in group.summary if name in first]
        targets += sum(row.met is not None for row in rows)
        short = sum(row.met is False for row in rows)
        if short:
            missed.append(f"[{group.title}]({anchor(group.title)}) ({short})")
            count += short
    lines = [table(chosen), ""] if chosen else []
    if targets:
        lines += [f"**Not met:** {count} of {targets} targets: " + ",\n".join(missed) + ".", ""] if missed else [f"All {targets} targets are met.", ""]
    return "\n".join(lines)


def command_line(*arguments):
    """The command's output; empty if it fails or does not exist."""
    if not shutil.which(arguments[0]):
        return ""
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip() if done.returncode == 0 else ""


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine():
    """The machine as a table, with a row for GPUs if there are any."""
    gpus = command_line("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return MACHINE.format(cpu=cpu_name(), cores=len(os.sched_getaffinity(0)), memory=f"{memory / (1 << 30):.1f} GiB",
                          system=f"{platform.system()} {platform.release()}") + "".join(
        f"\n| GPU | {name.replace(', ', ', driver ')} |" for name in gpus)


def machine_of(text):
    """The machine described on a page, as formatted by machine(); None if there is none."""
    found = re.search(r"^\| \| \|\n\|---\|---\|\n\| processor .*\n\| cores.*\n\| system .*(\n\| GPU .*)*$", text, re.MULTILINE)
    return found and found.group()


def commit_of(repo):
    """The commit, and whether the sources differ from it."""
    commit = command_line("git", "-C", str(repo), "rev-parse", "--short", "HEAD") or "unknown"
    return commit, bool(command_line("git", "-C", str(repo), "status", "--porcelain", "--untracked-files=no", "--", "*.cc", "*.h", "*.cu*"))


def stamp(repo, arguments, rounds, seconds):
    """Date and conditions of a group's measurement."""
    commit, changed = commit_of(repo)
    return (f"*Measured {datetime.date.today().isoformat()} at {commit}{' with changes' if changed else ''}, parameters on "
            f"{arguments.device}, {rounds} × {seconds:g} s{': a rough, quick run' if arguments.quick else ''}.*")


def sections_of(text):
    """The sections that scripts/bench wrote, by their headings, in the page's order."""
    end = text.find(BY_HAND_BEGIN)
    parts = ("\n" + (text if end < 0 else text[:end])).split("\n## ")[1:]
    return {"## " + part.partition("\n")[0]: "## " + part.strip() + "\n" for part in parts}


def page(groups, measured, minutes, before, trend=""):
    """The page with the sections in `measured` (by heading), then `trend`; the tables of the other groups, and manual
    sections, from `before`. With no measurements the page keeps its machine."""
    kept = sections_of(before)
    sections = {heading(group): with_text_of(group, kept[heading(group)]) for group in groups if heading(group) in kept}
    sections.update(measured)
    shown = (None if measured else machine_of(before)) or machine()
    head = INTRODUCTION.format(machine=shown, summary=summary(groups, sections), minutes=minutes)
    parts = [sections[heading(group)] for group in groups if heading(group) in sections] + [trend] * bool(trend)
    return head + "\n" + "\n".join(parts) + "\n" + by_hand(before)


def by_hand(text):
    """The section between the markers of the existing page."""
    begin, end = text.find(BY_HAND_BEGIN), text.find(BY_HAND_END)
    if begin < 0 or end < begin:
        return f"{BY_HAND_BEGIN}\n## What limits it\n\n{BY_HAND_END}\n"
    return text[begin:end + len(BY_HAND_END)] + "\n"
