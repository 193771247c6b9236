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


if __name__ == "__main__":
    unittest.main()
