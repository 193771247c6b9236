"""The tables of failures: each row says what is observed and what is kept, and has tests that exist."""

import itertools
import pathlib
import re
import unittest

REPO = pathlib.Path(__file__).resolve().parents[2]
PAGES = {"A standby": "standby.md", "Several daemons": "several_daemons.md", "Moving a model": "moving.md"}  # by heading of the page of tests
COLUMNS = ["what happens", "what is seen", "what is kept", "what to do"]
# The file of a process test, if its name differs from ctest's.
FILES = {"fault/several_daemons": "fault/test_several_daemons_faults.py"}


def table(lines, columns):
    """The cells of the first table with these columns."""
    begin = lines.index(f"| {' | '.join(columns)} |") + 2  # after the line of dashes
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[begin:])
    return [[cell.strip() for cell in line[1:-1].split(" |")] for line in rows]


def lines_of(page):
    return (REPO / "docs" / page).read_text(encoding="utf-8").splitlines()


def failures(page):
    return table(lines_of(f"guides/{page}"), COLUMNS)


def shown_by(heading):
    """For each row of the page with that heading: what happens, and the tests."""
    lines = lines_of("internals/failure_tests.md")
    return table(lines[lines.index(f"## {heading}") :], ["what happens", "shown by"])


def plain(cell):
    return re.sub(r"\]\([^)]*\)", "]", cell)


class FailureRows(unittest.TestCase):
    def test_each_row_is_whole(self):
        for page in PAGES.values():
            for row in failures(page):
                with self.subTest(page=page, row=row[0]):
                    self.assertEqual(len(row), len(COLUMNS))
                    self.assertTrue(row[1] and row[2])

    def test_each_row_has_tests(self):
        for heading, page in PAGES.items():
            self.assertEqual([plain(row[0]) for row in failures(page)], [plain(row[0]) for row in shown_by(heading)])

    def test_the_tests_are_there(self):
        texts = "".join(path.read_text(encoding="utf-8") for path in (REPO / "test").rglob("CMakeLists.txt"))
        named = 0
        for heading in PAGES:
            for what, tests in shown_by(heading):
                for group in tests.split(";"):  # an empty cell is one as well, which names none
                    found = re.fullmatch(r"\s*(`[\w/]+`(?:, `[\w/]+`)*)(?:: ([\w, ]+))?\s*", group)
                    with self.subTest(page=heading, row=what, tests=group):
                        self.assertTrue(found, "expected `NAME`: test, test")
                        for name in re.findall(r"`([\w/]+)`", found[1]):
                            self.assertRegex(texts, rf"\b{name.rpartition('/')[2]}\b")
                        for test in filter(None, (found[2] or "").split(", ")):
                            folder, _, name = re.findall(r"`([\w/]+)`", found[1])[-1].partition("/")
                            file = REPO / "test" / FILES.get(f"{folder}/{name}", f"{folder}/test_{name}.py")
                            self.assertIn(f"def test_{test}(", file.read_text(encoding="utf-8"))
                            named += 1
        self.assertGreater(named, 15)


if __name__ == "__main__":
    unittest.main()
