"""The Python package beside another distribution that is named psd too, and installs into the same folder."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from checkout import REPO

OURS = REPO / "trainer/python/psd"
FIX = "run 'pip uninstall psd psd-server', then install psd-server again"
# Modules that a program may import first.
MODULES = ("client", "errors", "jax", "sglang", "torch", "vllm")


class PythonNames(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="psd-names-")
        self.addCleanup(folder.cleanup)
        self.site = pathlib.Path(folder.name)

    def install_ours(self):
        shutil.copytree(OURS, self.site / "psd", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        # Replaces the compiled module; the refusal precedes its import.
        (self.site / "psd/_psd.py").write_text("raise SystemExit('psd._psd is imported')\n", encoding="utf-8")

    def install_other(self, metadata="psd-1.5.2.dist-info"):
        (self.site / "psd").mkdir(exist_ok=True)
        (self.site / "psd/__init__.py").write_text("from .psd import Series\n", encoding="utf-8")
        (self.site / "psd/psd.py").write_text("class Series: pass\n", encoding="utf-8")
        (self.site / metadata).mkdir()

    def imported(self, module):
        """The last line that the import of a module prints."""
        done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(self.site)!r}); import {module}"],
                              capture_output=True, text=True, check=False, cwd=self.site, timeout=60)
        return done.stderr.splitlines()[-1] if done.returncode else "imported"

    def assert_refused(self, module, *words):
        line = self.imported(module)
        self.assertTrue(line.startswith("ImportError: "), line)
        for word in (*words, FIX):
            self.assertIn(word, line)

    def test_alone(self):
        self.install_ours()
        for module in ("psd", "psd.client"):
            self.assertEqual(self.imported(module), "psd._psd is imported")

    def test_installed_after_the_other(self):
        self.install_other()
        self.install_ours()
        for module in ("psd", *(f"psd.{name}" for name in MODULES)):
            with self.subTest(module):
                self.assert_refused(module, "psd-1.5.2.dist-info")

    def test_installed_before_the_other(self):
        self.install_ours()
        self.install_other("psd-1.5.2-py3.11.egg-info")
        for module in ("psd", *(f"psd.{name}" for name in MODULES)):
            with self.subTest(module):
                self.assert_refused(module, "psd-1.5.2-py3.11.egg-info")

    def test_after_the_other_was_uninstalled(self):
        """The uninstallation removed __init__.py, whichever package's it was."""
        self.install_ours()
        (self.site / "psd/__init__.py").unlink()
        for module in MODULES:
            with self.subTest(module):
                self.assert_refused(f"psd.{module}", "__init__.py is not that of psd-server")


if __name__ == "__main__":
    unittest.main()
