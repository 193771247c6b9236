"""scripts/format: finds unformatted files, and formats them."""

import shutil
import subprocess
import sys
import unittest

from checkout import REPO, CheckoutTest


def is_version_14(name):
    """Whether scripts/format accepts this version; it refuses others."""
    path = shutil.which(name)
    return path is not None and "version 14." in subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout


class Format(CheckoutTest):
    def setUp(self):
        super().setUp()
        shutil.copy(REPO / ".clang-format", self.root)

    def test_names_the_file_then_formats_it(self):
        self.write("good.h", "int a();\n")
        self.write("bad.cc", "int a();\nint   b( );\n")
        result = self.run_script("format", "--check")
        self.assertEqual(result.stdout, "bad.cc:2\n")
        self.assert_fails(result, "1 of 2 files are not formatted")
        self.assertEqual(self.run_script("format").returncode, 0)
        self.assertEqual((self.root / "bad.cc").read_text(encoding="utf-8"), "int a();\nint b();\n")
        self.assertEqual(self.run_script("format", "--check").returncode, 0)

    def test_refuses_an_unknown_argument(self):
        self.assert_fails(self.run_script("format", "--chekc"), "unknown argument '--chekc'")


if __name__ == "__main__":
    if not any(is_version_14(name) for name in ("clang-format-14", "clang-format")):
        print("skipped: clang-format 14 is not installed")
        sys.exit(77)
    unittest.main()
