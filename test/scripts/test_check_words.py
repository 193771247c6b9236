"""scripts/check_words: what it lets pass, and what it refuses."""

import unittest

from checkout import CheckoutTest


class CheckWords(CheckoutTest):
    def check(self, files):
        """The violations that check_words prints for a checkout of these files."""
        for path, text in files.items():
            self.write(path, text)
        result = self.run_script("check_words", *files)
        lines = result.stdout.splitlines()
        self.assertEqual((result.returncode, result.stderr), (1 if lines else 0, ""))
        return lines

    def test_plain_words_pass(self):
        self.assertEqual([], self.check({"server/a.h": "// The daemon continues with the previous model.\nint goes_on;\n",
                                         "docs/b.md": "The trainer resumes: a renewed lease.\n"}))

    def test_a_banned_phrase_is_one_line_with_its_place(self):
        self.assertEqual(['docs/b.md:2: "goes on": write continues, or resumes',
                          'docs/b.md:3: "nobody": write no trainer, no caller, none'],
                         self.check({"docs/b.md": "One.\nThe run goes on.\nNobody waits.\n"}))

    def test_a_phrase_is_found_across_wrapped_lines(self):
        for path, text in {"a.h": "int a;\n/// The model goes\n/// on elsewhere.\n", "b.py": "a = 1\n# the run goes\n# on\n",
                           "c.md": "One\nthe run goes\non\n"}.items():
            with self.subTest(path=path):
                self.assertEqual([f'{path}:2: "goes on": write continues, or resumes'], self.check({path: text}))
                (self.root / path).unlink()

    def test_decisions_and_the_changelog_are_exempt(self):
        self.assertEqual([], self.check({"docs/internals/decisions/0001-a.md": "It goes on.\n", "CHANGELOG.md": "It goes on.\n"}))

    def test_only_the_paths_that_are_named_are_read(self):
        self.write("a/x.md", "It goes on.\n")
        self.write("b/x.md", "It continues.\n")
        self.assertEqual(self.run_script("check_words", "b").returncode, 0)
        self.assertEqual(self.run_script("check_words", "a").returncode, 1)


if __name__ == "__main__":
    unittest.main()
