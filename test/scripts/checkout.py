"""A checkout of scripts/ only in a temporary folder, for tests of the scripts."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

REPO = pathlib.Path(__file__).resolve().parents[2]


class CheckoutTest(unittest.TestCase):
    """Each test has a checkout of its own, self.root, which is removed at the end."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="psd-scripts-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name) / "checkout"
        shutil.copytree(REPO / "scripts", self.root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(["git", "init", "-q", self.root], check=True)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")

    def run_script(self, name, *arguments, path_first=None, **environment):
        """Runs scripts/NAME from a folder outside the checkout; the result has returncode, stdout, stderr."""
        variables = {**os.environ, **environment}
        if path_first:
            variables["PATH"] = f"{path_first}:{variables['PATH']}"
        return subprocess.run([self.root / "scripts" / name, *arguments], cwd="/", env=variables, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=100, check=False)

    def assert_fails(self, result, reason):
        """A non-zero exit, and one line that gives the reason."""
        self.assertNotEqual(result.returncode, 0, result.stdout)
        lines = result.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertIn(reason, lines[0])
