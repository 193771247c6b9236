"""The page that scripts/bench writes: new tables beside those that stay."""

import itertools
import pathlib
import sys
import types
import unittest

sys.dont_write_bytecode = True
REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "scripts"))
import bench_groups
import bench_report

BY_HAND = f"{bench_report.BY_HAND_BEGIN}\n## What limits it\n\nWords.\n\n{bench_report.BY_HAND_END}\n"


class NamedGroup:
    def __init__(self, title):
        self.title = title
        self.text = "How to read it."
        self.unmeasured = []


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
        self.assertIn("| pull | 2.00 GB/s | copy: 1.00 GB/s | 2.00 | ≥ 0.9 | met |", page)
        self.assertIn(bench_report.machine(), page)
        self.assertTrue(page.endswith(bench_report.BY_HAND_END + "\n"))

    def test_one_group_anew_leaves_the_others_and_what_is_by_hand(self):
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

    def test_every_group_has_a_title_of_its_own(self):
        titles = [group.title for group in bench_groups.GROUPS]
        self.assertEqual(len(set(titles)), len(titles))

    def test_every_group_says_what_it_measures(self):
        cases = itertools.product(("cpu", "cuda:0"), (False, True), bench_groups.GROUPS)
        for device, quick, group in cases:
            programs = types.SimpleNamespace(python=None, seconds=1, device=device)
            with self.subTest(group.name, device=device, quick=quick):
                work = group(programs, quick).measurements()
                self.assertTrue(work)
                self.assertTrue(all(callable(measure) for measure in work.values()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
