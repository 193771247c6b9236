"""The history of scripts/bench: reader and writer, and the trend on its page."""

import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

sys.dont_write_bytecode = True
REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "scripts"))
import bench_groups
import bench_history
import bench_report
from bench_history import Figure, Run
from bench_programs import Failed

MACHINE = {"cpu": "Z80", "cores": 2, "memory": "1.0 GiB", "system": "CP/M 2.2", "gpus": []}
PULL = Figure("transfer", "pull, Unix", "plain stream", 0.9, 0.85, True, True)
RUN = Run("2026-01-02", "0123abcd", False, "0.1.0", MACHINE, "cpu", [PULL])


def run(ratio=0.9, date="2026-01-02", device="cpu", figures=None, **machine):
    """A run that measured only a pull, whose target is 0.85."""
    pull = dataclasses.replace(PULL, ratio=ratio, met=ratio >= PULL.limit)
    return dataclasses.replace(RUN, date=date, device=device, machine={**MACHINE, **machine}, figures=[pull] if figures is None else figures)


class HistoryTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="psd-history-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "history.jsonl"

    def bench(self, *arguments):
        return subprocess.run([sys.executable, REPO / "scripts" / "bench", *arguments], text=True, capture_output=True, timeout=60, check=False)


class Files(HistoryTest):
    def test_no_file_and_an_empty_one_hold_no_run(self):
        self.assertEqual(bench_history.read(self.path), [])
        for text in ("", "\n", " \n\n"):
            self.path.write_text(text, encoding="utf-8")
            self.assertEqual(bench_history.read(self.path), [])

    def test_what_is_appended_is_read_and_what_was_there_stays(self):
        bench_history.append(self.path, RUN)
        before = self.path.read_text(encoding="utf-8")
        later = run(ratio=0.5, date="2026-02-03", cpu="6502")
        bench_history.append(self.path, later)
        self.assertTrue(self.path.read_text(encoding="utf-8").startswith(before))
        self.assertEqual(bench_history.read(self.path), [RUN, later])

    def test_a_last_line_without_an_end_is_ended(self):
        self.path.write_text(RUN.line(), encoding="utf-8")
        bench_history.append(self.path, RUN)
        self.assertEqual(bench_history.read(self.path), [RUN, RUN])

    def refused(self, line, *words):
        self.path.write_text(RUN.line() + "\n" + line + "\n", encoding="utf-8")
        with self.assertRaises(Failed) as refusal:
            bench_history.read(self.path)
        for word in (f"{self.path}:2: ", *words):
            self.assertIn(word, str(refusal.exception))

    def test_a_malformed_line_is_refused_by_its_place(self):
        good = json.loads(RUN.line())
        figure = good["figures"][0]
        self.refused("{", "Expecting")
        self.refused("[]", "expected an object")
        self.refused(json.dumps({key: value for key, value in good.items() if key != "commit"}), "'commit' is missing")
        self.refused(json.dumps({**good, "date": 5}), "'date' is missing or of another type")
        self.refused(json.dumps({**good, "changes": 0}), "'changes' is missing or of another type")
        self.refused(json.dumps({**good, "more": 1}), "'more': unknown field")
        self.refused(json.dumps({**good, "machine": {**MACHINE, "cores": "2"}}), "'machine' lacks cpu, cores or gpus")
        self.refused(json.dumps({**good, "figures": [[]]}), "expected an object")
        self.refused(json.dumps({**good, "figures": [{**figure, "ratio": float("nan")}]}), "'ratio' is nan")
        self.refused(json.dumps({**good, "figures": [{**figure, "limit": -1}]}), "'limit' is -1")
        self.refused(json.dumps({**good, "figures": [{**figure, "ratio": True}]}), "'ratio' is missing or of another type")

    def test_what_is_no_text_is_refused(self):
        self.path.write_bytes(b"\xff\n")
        with self.assertRaisesRegex(Failed, "history.jsonl: cannot be read"):
            bench_history.read(self.path)
        with self.assertRaisesRegex(Failed, "absent/history.jsonl: cannot be written: No such file"):
            bench_history.append(self.path.parent / "absent" / "history.jsonl", RUN)

    def test_scripts_bench_refuses_a_malformed_history_before_it_measures(self):
        self.path.write_text("{\n", encoding="utf-8")
        done = self.bench("--json", str(self.path), "--only", "memory", "--output", "-", "--build", str(self.path.parent))
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"^scripts/bench: error: .*history\.jsonl:1: .*; mend or delete the line\n$")

    def test_scripts_bench_refuses_a_place_that_is_not_there_before_it_measures(self):
        for option in ("--json", "--samples"):
            done = self.bench(option, str(self.path.parent / "absent" / "file"), "--only", "memory", "--output", "-")
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"{option}: there is no folder '{self.path.parent}/absent'", done.stderr)

    def test_rough_figures_stay_out(self):
        for option in ("--quick", "--text"):
            done = self.bench("--json", str(self.path), option)
            self.assertEqual(done.returncode, 2)
            self.assertIn("--json cannot be combined with --text or --quick", done.stderr)
        self.assertFalse(self.path.exists())

    def test_the_history_of_the_page_can_be_read(self):
        for each in bench_history.read(REPO / "docs" / "reference" / "performance_history.jsonl"):
            self.assertTrue(each.figures)


class Figures(unittest.TestCase):
    def test_every_row_with_a_target_that_was_measured(self):
        rows = [bench_report.Row.at_least("pull", 2e9, "copy", 4e9, 0.9, bench_report.gigabytes),
                bench_report.Row.at_most("step", 3e-3, "loop", 2e-3, 1.5, bench_report.milliseconds),
                bench_report.Row.floor("calls", 90_000, 60_000, lambda value: f"{value:,}"),
                bench_report.Row.ceiling("rise", 1 << 19, 1 << 20, bench_report.mebibytes),
                bench_report.Row.at_least("push", 2e9, "copy", 4e9, None, bench_report.gigabytes),
                bench_report.Row.floor("lost", None, 10, str)]
        self.assertEqual(bench_history.figures_of("g", "## G\n\nText.\n\n" + bench_report.table(rows) + "\n\n*Measured.*\n"), [
            Figure("g", "pull", "copy", 0.5, 0.9, True, False), Figure("g", "step", "loop", 1.5, 1.5, False, True),
            Figure("g", "calls", "its target", 1.5, 1.0, True, True), Figure("g", "rise", "its target", 0.5, 1.0, False, True)])

    def test_the_machine_is_that_of_the_page(self):
        table = bench_report.MACHINE.format(cpu="Z80", cores=2, memory="1.0 GiB", system="CP/M 2.2")
        self.assertEqual(bench_history.machine_of(table), MACHINE)
        self.assertEqual(bench_history.machine_of(table + "\n| GPU | H100, driver 5.1 |")["gpus"], ["H100"])
        self.assertEqual(set(bench_history.machine_of(bench_report.machine())), set(MACHINE))

    def test_a_bar_tells_whether_and_by_how_much(self):
        def bar(ratio, limit, at_least):
            return Figure("g", "w", "r", ratio, limit, at_least, ratio >= limit if at_least else ratio <= limit).bar()

        self.assertEqual([bar(ratio, 1, True) for ratio in (0, 0.4, 0.55, 0.75, 0.99, 1, 1.2, 1.5, 1.7, 9)], list("▁▁▁▃▄▅▆▇██"))
        self.assertEqual([bar(ratio, 2, False) for ratio in (0, 1, 1.5, 2, 2.1, 4, 90)], list("██▆▅▄▁▁"))
        self.assertEqual((bar(0, 0, False), bar(1, 0, False)), ("█", "▁"))
        # Rounded to two digits a ratio could show a missed target as met.
        self.assertEqual((Figure("g", "w", "r", 0.85, 0.85, True, False).bar(), Figure("g", "w", "r", 0.84, 0.85, True, True).bar()), ("▄", "▅"))


class Trend(HistoryTest):
    def setUp(self):
        super().setUp()
        self.groups = [types.SimpleNamespace(name="transfer", title="Pull and push"), types.SimpleNamespace(name="latency", title="Small calls")]

    def trend(self, *runs):
        return bench_history.trend(self.groups, list(runs), self.path, self.path.parent / "page.md")

    def lines(self, text, beginning):
        return [line for line in text.splitlines() if line.startswith(beginning)]

    def test_without_runs_there_is_none(self):
        self.assertEqual(self.trend(), "")

    def test_a_line_has_a_bar_for_each_run_and_the_newest_ratio(self):
        text = self.trend(run(0.6), run(0.9), run(1.2, date="2026-03-04"))
        self.assertEqual(self.lines(text, "| pull"), ["| pull, Unix | plain stream | ≥ 0.85 | 1.20 | ▂▅▆ |"])
        self.assertIn("3 run(s), from 2026-01-02 (commit 0123abcd, version 0.1.0) to 2026-03-04 ", text)
        self.assertIn("[history.jsonl](history.jsonl)", text)

    def test_machines_that_cannot_be_compared_share_no_line(self):
        text = self.trend(run(0.6), run(0.9, cpu="6502"), run(0.9), run(0.9, cores=4), run(0.6, device="cuda:0", gpus=["H100"]),
                          run(0.9, device="cuda:1", gpus=["H100"]), run(0.9, device="cuda:0", gpus=["A100"]), run(0.9, gpus=["A100"], system="other"))
        self.assertEqual(self.lines(text, "### "), ["### Z80, 2 cores", "### 6502, 2 cores", "### Z80, 4 cores",
                                                    "### Z80, 2 cores, parameters on H100", "### Z80, 2 cores, parameters on A100"])
        self.assertEqual([line.split("|")[5].strip() for line in self.lines(text, "| pull")], ["▂▅▅", "▂▅"])
        self.assertEqual(text.count("No target was measured twice."), 3)

    def test_a_run_of_some_groups_leaves_the_others_as_they_were(self):
        call = Figure("latency", "round trip", "ping-pong", 1.0, 1.4, False, True)
        text = self.trend(run(figures=[PULL]), run(figures=[PULL, call]), run(figures=[dataclasses.replace(call, ratio=2.8, met=False)]), run(figures=[]))
        self.assertEqual(self.lines(text, "| pull"), ["| pull, Unix | plain stream | ≥ 0.85 | 0.90 | ▅▅ |"])
        self.assertEqual(self.lines(text, "| round"), ["| round trip | ping-pong | ≤ 1.4 | 2.80 | ▆▁ |"])

    def test_targets_and_groups_that_are_gone_go(self):
        gone = dataclasses.replace(PULL, what="push, Unix")
        other = dataclasses.replace(PULL, group="gone")
        text = self.trend(run(figures=[PULL, gone, other]), run())
        self.assertEqual(len(self.lines(text, "| pull")), 1)
        self.assertEqual(self.lines(text, "| push"), [])

    def test_old_runs_are_not_shown(self):
        text = self.trend(*[run(0.6)] * 5, *[run(0.9)] * bench_history.RUNS_SHOWN)
        self.assertIn(f"| 0.90 | {'▅' * bench_history.RUNS_SHOWN} |", text)

    def test_the_page_has_it_once_and_reads_no_row_of_it(self):
        group = types.SimpleNamespace(name="transfer", title="Pull and push", text="Text.", unmeasured=[], summary=("pull, Unix",))
        row = bench_report.Row.at_least("pull, Unix", 9, "plain stream", 10, 0.85, str)
        section = bench_report.section(group, [bench_report.table([row])], (), "*once*")
        first = bench_report.page([group], {bench_report.heading(group): section}, 12, "", self.trend(run(0.6)))
        second = bench_report.page([group], {}, 12, first, self.trend(run(0.6), run(0.9)))
        self.assertEqual(second.count("## Trend"), 1)
        self.assertIn("| ▂▅ |", second)
        self.assertIn("All 1 targets are met.", second)
        self.assertLess(second.index("## Trend"), second.index(bench_report.BY_HAND_BEGIN))

    def test_no_group_has_its_title(self):
        self.assertNotIn("Trend", [group.title for group in bench_groups.GROUPS])


if __name__ == "__main__":
    unittest.main(verbosity=2)
