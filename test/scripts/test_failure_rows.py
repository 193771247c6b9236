"""The tables of failures name existing tests, and each row says what is observed and what is kept."""

import itertools
import pathlib
import re
import unittest

REPO = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("docs/guides/standby.md", "docs/guides/several_daemons.md")
COLUMNS = ["what happens", "what is seen", "what is kept", "what to do", "shown by"]
# The file of a process test, if its name differs from ctest's.
FILES = {"fault/several_daemons": "fault/test_several_daemons_faults.py"}


def rows(page):
    """The cells of the table of failures."""
    lines = (REPO / page).read_text(encoding="utf-8").splitlines()
    begin = lines.index(f"| {' | '.join(COLUMNS)} |") + 2  # after the line of dashes
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[begin:])
    return [[cell.strip() for cell in line[1:-1].split(" |")] for line in table]


class FailureRows(unittest.TestCase):
    def test_each_row_is_whole(self):
        for page in PAGES:
            for row in rows(page):
                with self.subTest(page=page, row=row[0]):
                    self.assertEqual(len(row), len(COLUMNS))
                    self.assertTrue(row[1] and row[2])

    def test_the_tests_are_there(self):
        texts = "".join(path.read_text(encoding="utf-8") for path in (REPO / "test").rglob("CMakeLists.txt"))
        named = 0
        for page in PAGES:
            for row in rows(page):
                for group in row[4].split(";"):  # an empty cell is one as well, which names none
                    found = re.fullmatch(r"\s*(`[\w/]+`(?:, `[\w/]+`)*)(?:: ([\w, ]+))?\s*", group)
                    with self.subTest(page=page, row=row[0], tests=group):
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
