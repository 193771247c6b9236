"""Every script has a help text, and rejects unknown arguments."""

import os
import unittest

from checkout import REPO, CheckoutTest


class Help(CheckoutTest):
    def test_every_script_explains_itself(self):
        names = [path.name for path in sorted((REPO / "scripts").iterdir()) if path.is_file() and os.access(path, os.X_OK)]
        self.assertGreater(len(names), 8)
        for name in names:
            for flag in ("--help", "-h"):
                with self.subTest(name=name, flag=flag):
                    done = self.run_script(name, flag)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    self.assertIn(name, done.stdout)
                    self.assertGreater(len(done.stdout.splitlines()), 2)

    def test_wrong_command_lines_are_one_line_with_status_2(self):
        scripts = [path for path in sorted((REPO / "scripts").iterdir()) if path.is_file() and path.read_bytes().startswith(b"#!/usr/bin/env bash")]
        self.assertGreater(len(scripts), 8)
        for name, arguments in [(path.name, ["--bogus"]) for path in scripts] + [("export_model", []), ("convert_data", []), ("bundle", [])]:
            with self.subTest(name=name, arguments=arguments):
                done = self.run_script(name, *arguments)
                self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (2, "", 1), done.stderr)
                self.assertTrue(done.stderr.startswith(f"{name}: "), done.stderr)
                self.assertIn(f"scripts/{name} --help", done.stderr)


if __name__ == "__main__":
    unittest.main()
