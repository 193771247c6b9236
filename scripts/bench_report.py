"""The page that scripts/bench writes: docs/performance.md."""

import dataclasses
import datetime
import os
import platform
import subprocess

BY_HAND_BEGIN = "<!-- by hand: kept when the page is generated -->"
BY_HAND_END = "<!-- end of what is by hand -->"

INTRODUCTION = """# Performance

What psd's data path does on one machine, beside what the machine does without psd. `scripts/bench` wrote this page.

{machine}

A figure is the median over the rounds. Each round runs every measurement of a group and its references one after the other, so that
what else goes on in the machine touches all of them. A ratio is psd's median by the reference's; compare ratios within this page, not
figures between machines. `target` is what psd means to reach; a row without one is for orientation.

Measure your own daemon, which must hold no other model: `psd-trainer bench pull --server tcp://host:5500` (`psd-trainer bench --help`
names the other operations). Run all of this: `scripts/bench` (about {minutes} minutes; `--help` explains; `--quick` is shorter
and rougher; `--only sweep` measures one group anew and leaves the other tables as they are).
"""

MACHINE = """| | |
|---|---|
| processor | {cpu} |
| cores, memory | {cores}, {memory} |
| system | {system} |"""


def gigabytes(value):
    return f"{value / 1e9:.2f} GB/s"


def mebibytes(value):
    return f"{value / (1 << 20):.1f} MiB"


def microseconds(value):
    return f"{value * 1e6:.1f} µs"


def milliseconds(value):
    return f"{value * 1e3:.2f} ms"


@dataclasses.dataclass
class Row:
    """One line of a table. `met` is None without a target, or without a figure."""

    what: str
    value: str
    reference: str
    ratio: str
    target: str
    met: bool | None

    @staticmethod
    def compare(what, value, name, reference, target, show, sign, passes):
        if value is None or reference is None:
            return Row(what, "not measured" if value is None else show(value), name, "", "", None)
        ratio = value / reference
        return Row(what, show(value), f"{name}: {show(reference)}", f"{ratio:.2f}", f"{sign} {target:g}" if target else "",
                   passes(ratio, target) if target else None)

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
        verdict = {True: "met", False: "**not met**", None: ""}[self.met]
        return f"| {self.what} | {self.value} | {self.reference} | {self.ratio} | {self.target} | {verdict} |"


def table(rows):
    return "\n".join(["| | psd | beside it | ratio | target | |", "|---|---|---|---|---|---|", *(row.line() for row in rows)])


def section(group, tables, failures, stamp):
    """One group as Markdown."""
    lines = [heading(group), "", group.text, ""]
    lines += [part for each in tables for part in (each, "")]
    lines += [f"Not measured: {reason}.  " for reason in [*group.unmeasured, *failures]]
    if tables:
        lines += [*([""] if lines[-1] else []), stamp]
    return "\n".join(lines).rstrip() + "\n"


def heading(group):
    return f"## {group.title}"


def command_line(*arguments):
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip() if done.returncode == 0 else ""


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine():
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return MACHINE.format(cpu=cpu_name(), cores=len(os.sched_getaffinity(0)), memory=f"{memory / (1 << 30):.1f} GiB",
                          system=f"{platform.system()} {platform.release()}")


def introduction(minutes):
    return INTRODUCTION.format(machine=machine(), minutes=minutes)


def stamp(repo, arguments, rounds, seconds):
    """When and how one group was measured."""
    commit = command_line("git", "-C", str(repo), "rev-parse", "--short", "HEAD") or "unknown"
    changed = command_line("git", "-C", str(repo), "status", "--porcelain", "--untracked-files=no", "--", "*.cc", "*.h", "*.cu*")
    return (f"*Measured on {datetime.date.today().isoformat()} at commit {commit}{' with changes' if changed else ''}, parameters on "
            f"{arguments.device}, {rounds} round(s) of {seconds:g} s a measurement"
            f"{': a quick run, so take the figures as rough' if arguments.quick else ''}.*")


def sections_of(text):
    """The sections that scripts/bench wrote, by their headings, in the page's order."""
    end = text.find(BY_HAND_BEGIN)
    parts = ("\n" + (text if end < 0 else text[:end])).split("\n## ")[1:]
    return {"## " + part.partition("\n")[0]: "## " + part.strip() + "\n" for part in parts}


def page(groups, measured, minutes, before):
    """The page with the sections in `measured` (by heading); those of the other groups, and what is by hand, as `before` has
    them."""
    sections = {**sections_of(before), **measured}
    kept = [sections[heading(group)] for group in groups if heading(group) in sections]
    return introduction(minutes) + "\n" + "\n".join(kept) + "\n" + by_hand(before)


def by_hand(text):
    """The section between the markers in the page that is there."""
    begin, end = text.find(BY_HAND_BEGIN), text.find(BY_HAND_END)
    if begin < 0 or end < begin:
        return f"{BY_HAND_BEGIN}\n## What limits it\n\n{BY_HAND_END}\n"
    return text[begin:end + len(BY_HAND_END)] + "\n"
