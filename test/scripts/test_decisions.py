"""Each decision has a number, a date and a status, and a row in the index."""

import pathlib
import re
import unittest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs/internals/decisions"
STATUS = re.compile(r"Status: (?:superseded by \[(\d{4})\]\(\1-[\w-]+\.md\)|accepted(?:; supersede[sd] .*\[(\d{4})\]\(\2-[\w-]+\.md\).*)?)")
HEAD = re.compile(r"# (\d{4}): (.+)\n\nDate: (20\d\d-\d\d-\d\d)\n\n(Status: .+)\n\n")


class Decisions(unittest.TestCase):
    def setUp(self):
        self.pages = sorted(FOLDER.glob("[0-9]*.md"))
        self.heads = {page: HEAD.match(page.read_text(encoding="utf-8")) for page in self.pages}

    def test_each_has_title_date_and_status(self):
        for page, head in self.heads.items():
            with self.subTest(page=page.name):
                self.assertTrue(head, "expected '# NNNN: title', 'Date: YYYY-MM-DD' and 'Status: …', with an empty line after each")
                self.assertEqual(page.name[:5], head[1] + "-")
                self.assertRegex(head[4], rf"^{STATUS.pattern}$")

    def test_numbers_follow_one_another(self):
        self.assertEqual([f"{n:04}" for n in range(1, len(self.pages) + 1)], [page.name[:4] for page in self.pages])

    def test_the_index_has_each(self):
        rows = [f"| [{head[1]}]({page.name}) | {head[2]} | {head[3]} |" for page, head in self.heads.items() if head]
        lines = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
        self.assertEqual(rows, [line for line in lines if line.startswith("| [")])


if __name__ == "__main__":
    unittest.main()
