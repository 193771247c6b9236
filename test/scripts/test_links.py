"""Relative links of all Markdown files lead to files and headings that exist, as do the paths below docs/ that other files name."""

import functools
import pathlib
import re
import subprocess
import unittest

REPO = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`+[^`\n]*`+")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
MENTION = re.compile(r"(?<![\w./-])docs/[\w./-]*\w\.(?:md|jsonl|svg|png)\b")
MADE_UP = ("test/scripts/",)  # files that write pages of their own


def listed(*patterns):
    """The files that git does not ignore, by path."""
    names = subprocess.run(["git", "-C", REPO, "ls-files", "-zco", "--exclude-standard", "--", *patterns], check=True, capture_output=True,
                           text=True).stdout.split("\0")
    return [name for name in names if name and (REPO / name).is_file()]


@functools.cache
def anchors(page):
    """The anchors that GitHub gives to the headings of a page."""
    found, counts = set(), {}
    for heading in HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", text.replace("`", "").lower()).replace(" ", "-")
        count = counts[name] = counts.get(name, -1) + 1
        found.add(f"{name}-{count}" if count else name)
    return found


class Links(unittest.TestCase):
    def test_links_of_pages(self):
        pages = listed("*.md")
        self.assertGreater(len(pages), 100)
        for name in pages:
            page = REPO / name
            text = CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
            for link in LINK.findall(text):
                if re.match(r"[a-z]+:", link):
                    continue
                path, _, anchor = link.partition("#")
                target = (page.parent / path).resolve() if path else page
                with self.subTest(page=name, link=link):
                    self.assertTrue(target.exists(), "no such file")
                    if anchor:
                        self.assertIn(anchor, anchors(target))

    def test_pages_that_files_name(self):
        for name in listed():
            if name.startswith(MADE_UP):
                continue
            try:
                text = (REPO / name).read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            for path in MENTION.findall(text):
                with self.subTest(file=name, path=path):
                    self.assertTrue((REPO / path).is_file(), "no such file")

    def test_the_index_names_each_page(self):
        text = (REPO / "docs/README.md").read_text(encoding="utf-8")
        linked = {str((REPO / "docs" / link.partition("#")[0]).resolve().relative_to(REPO)) for link in LINK.findall(text)}
        pages = {name for name in listed("docs/*.md") if not name.startswith("docs/internals/decisions/0")}
        self.assertEqual(set(), pages - linked - {"docs/README.md"})


if __name__ == "__main__":
    unittest.main()
