"""The page that scripts/bench writes: new tables beside unchanged ones."""

import itertools
import pathlib
import sys
import types
import unittest

sys.dont_write_bytecode = True
REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "scripts"))
import bench_group
import bench_groups
import bench_report

BY_HAND = f"{bench_report.BY_HAND_BEGIN}\n## What limits it\n\nWords.\n\n{bench_report.BY_HAND_END}\n"


class NamedGroup:
    def __init__(self, title):
        self.title = title
        self.text = "How to read it."
        self.unmeasured = []
        self.summary = ("pull",)


class Page(unittest.TestCase):
    def setUp(self):
        self.groups = [NamedGroup(title) for title in ("First", "Second", "Third")]

    def measured(self, *numbers, stamp="*once*", failures=()):
        """Sections of those groups with one row each."""
        row = bench_report.Row.at_least("pull", 2e9, "copy", 1e9, 0.9, bench_report.gigabytes)
        return {bench_report.heading(group): bench_report.section(group, [bench_report.table([row])], failures, stamp)
                for group in (self.groups[number] for number in numbers)}

    def page(self, measured, before=""):
        return bench_report.page(self.groups, measured, 12, before)

    def test_a_page_of_all_groups(self):
        page = self.page(self.measured(2, 0, 1))
        self.assertLess(page.index("## First"), page.index("## Second"))
        self.assertLess(page.index("## Second"), page.index("## Third"))
        self.assertIn("| pull | 2.00 GB/s | copy: 1.00 GB/s | 2.00 | ≥ 0.9 |", page)
        self.assertIn(bench_report.machine(), page)
        self.assertTrue(page.endswith(bench_report.BY_HAND_END + "\n"))

    def test_one_new_group_leaves_the_others_and_manual_sections(self):
        before = self.page(self.measured(0, 1, 2), BY_HAND)
        after = self.page(self.measured(1, stamp="*again*"), before)
        self.assertEqual(after, self.page({**self.measured(0, 2), **self.measured(1, stamp="*again*")}, BY_HAND))
        self.assertEqual(after.count("*once*"), 2)
        self.assertEqual(after.count("*again*"), 1)
        self.assertIn("Words.", after)
        self.assertEqual(self.page(self.measured(1), after), before)

    def test_a_group_that_is_new_takes_its_place_and_one_that_is_gone_goes(self):
        before = self.page(self.measured(0, 2), BY_HAND)
        after = self.page(self.measured(1), before)
        self.assertEqual(after, self.page(self.measured(0, 1, 2), BY_HAND))
        del self.groups[0]
        self.assertNotIn("## First", self.page({}, after))

    def test_what_could_not_be_measured_is_said(self):
        page = self.page(self.measured(0, failures=["pull: psd did not start"]))
        self.assertIn("Not measured: pull: psd did not start.", page)

    def of_rows(self, number, *rows):
        group = self.groups[number]
        return {bench_report.heading(group): bench_report.section(group, [bench_report.table(rows)], (), "*once*")}

    def head(self, page):
        return page.partition("\n## ")[0]

    def test_the_head_shows_the_rows_that_groups_name_and_where_targets_are_not_met(self):
        def pull(rate, name="copy"):
            return bench_report.Row.at_least("pull", rate, name, 1e9, 0.9, bench_report.gigabytes)

        aside = bench_report.Row.at_most("step; alone", 3e-3, "loop", 1e-3, 1.5, bench_report.milliseconds)
        bounded = bench_report.Row.ceiling("rise", 4 << 20, 1 << 20, bench_report.mebibytes)
        head = self.head(self.page({**self.of_rows(0, pull(2e9), pull(0.5e9, "torch"), aside), **self.of_rows(2, bounded)}))
        self.assertEqual([line for line in head.splitlines() if line.startswith("| pull")], [pull(2e9).line()])
        self.assertNotIn("| step", head)
        self.assertIn("**Not met:** 3 of 4 targets: [First](#first) (2),\n[Third](#third) (1).\n", head)
        self.assertIn("\nAll 1 targets are met.\n", self.head(self.page(self.of_rows(1, pull(2e9)))))

    def test_a_row_is_read_as_it_was_written(self):
        compared = bench_report.Row.at_least("pull", 2e9, "copy", 1e9, 0.9, bench_report.gigabytes)
        for row in (compared, bench_report.Row.at_least("push", 2e9, "copy", 4e9, None, bench_report.gigabytes),
                    bench_report.Row.floor("calls", None, 10, str), bench_report.Row.ceiling("rise", 3, 2, str)):
            self.assertEqual(bench_report.Row.read(row.line()), row)
        for line in [*bench_report.table([]).splitlines(), "| a sweep's row | 0.80 |", "words", ""]:
            self.assertIsNone(bench_report.Row.read(line))

    def test_a_ratio_is_the_median_of_those_within_a_round(self):
        class Transfers(bench_group.Group):
            def rows(self, medians):
                return [bench_report.Row.at_least("pull", medians["pull"], "copy", medians["copy"], 0.9, bench_report.gigabytes),
                        bench_report.Row.ceiling("rise", 3, 2, str)]

        # The machine runs at half speed from the third round on, in which a measurement of psd failed.
        rounds = [{"pull": 4e9, "copy": 4e9}, {"pull": 3.8e9, "copy": 4e9}, {"pull": 2e9, "copy": 2e9}, {"pull": None, "copy": 2e9},
                  {"pull": None, "copy": 2e9}]
        page = Transfers(None, False).tables({"pull": 3.8e9, "copy": 2e9}, rounds)[0]
        self.assertIn("| pull | 3.80 GB/s | copy: 2.00 GB/s | 1.00 | ≥ 0.9 |", page)
        self.assertIn("| rise | 3 |", page)
        self.assertIn("| 1.90 | ≥ 0.9 |", Transfers(None, False).tables({"pull": 3.8e9, "copy": 2e9})[0])
        short = Transfers(None, False).tables({"pull": 3.8e9, "copy": 2e9}, [{"pull": 1.6e9, "copy": 2e9}])[0]
        self.assertIn("| 0.80 | **≥ 0.9** |", short)

    def test_with_nothing_measured_texts_are_new_and_figures_and_machine_stay(self):
        before = self.page(self.measured(0, 1, failures=["push: it broke"]), BY_HAND)
        before = before.replace(bench_report.machine(), bench_report.MACHINE.format(cpu="Z80", cores=1, memory="1 GiB", system="CP/M"))
        self.assertEqual(self.page({}, before), before)
        self.groups[0].text = "How it was meant.\n\n- In two parts."
        after = self.page({}, before)
        self.assertEqual(after, before.replace("How to read it.", self.groups[0].text, 1))
        self.assertNotIn("Z80", self.page(self.measured(1), before))

    def test_what_groups_show_in_the_head_they_have(self):
        programs = types.SimpleNamespace(python="python3", has_package=lambda: True, seconds=1, device="cpu")
        for kind in bench_groups.GROUPS:
            group = kind(programs, False)
            if group.summary:
                rows = group.rows(dict.fromkeys(group.measurements(), 1.0))
                self.assertLessEqual(set(group.summary), {row.what for row in rows}, group.name)

    def test_every_group_has_a_title_of_its_own(self):
        titles = [group.title for group in bench_groups.GROUPS]
        self.assertEqual(len(set(titles)), len(titles))

    def test_every_group_says_what_it_measures(self):
        cases = itertools.product(("cpu", "cuda:0"), (False, True), (None, "python3"), bench_groups.GROUPS)
        for device, quick, python, group in cases:
            programs = types.SimpleNamespace(python=python, has_package=lambda python=python: bool(python), seconds=1, device=device)
            with self.subTest(group.name, device=device, quick=quick, python=python):
                work = group(programs, quick).measurements()
                self.assertTrue(work)
                self.assertTrue(all(callable(measure) for measure in work.values()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
