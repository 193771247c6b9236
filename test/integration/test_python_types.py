"""The package is typed: mypy --strict reports nothing for it, nor for the examples' use of it."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import processes
from example_programs import EXAMPLES

WRONG = """
import psd.torch, torch
client = psd.Client("tcp://host:5500", retry_timeout="long")
client.pull(client.rows().values(7))
psd.torch.Embedding("item", "64")
psd.Client("tcp://host:5500", retry_timout=3)
psd.torch.DiLoCo(torch.nn.Linear(1, 1), torch.optim.SGD([torch.zeros(1)]), retry_timout=3)
psd.torch.Optimizer(torch.optim.SGD([torch.zeros(1)]), "tcp://host:5500", retry_timout=3)
psd.torch.Optimizer("tcp://host:5500")
psd.torch.Optimizer(torch.nn.Linear(1, 1)).step(samples="32")
"""
# Packages of the frameworks lane: their types are not examined, nor that they are installed.
CONFIGURATION = """
[mypy]
strict = True
# PyTorch's own backward() has no annotations.
untyped_calls_exclude = torch
[mypy-transformers.*,pytorch_lightning.*]
ignore_missing_imports = True
follow_imports = skip
[mypy-vllm.*]
ignore_missing_imports = True
follow_imports = skip
[mypy-psd._vllm_engine]
disallow_subclassing_any = False
[mypy-lightning_example]
disallow_subclassing_any = False
"""
WRONG_JAX = """
import psd.jax
psd.jax.Trainer({}, "tcp://host:5500", retry_timout=3)
"""


@unittest.skipUnless(importlib.util.find_spec("mypy"), "no mypy (scripts/setup --tests brings it)")
class PythonTypes(unittest.TestCase):
    def test_package_and_examples(self):
        import psd

        package = pathlib.Path(psd.__file__).parent
        self.assertTrue((package / "py.typed").exists() and (package / "_psd.pyi").exists())
        examples = [path for path in EXAMPLES.glob("*.py") if path.name != "jax_example.py" or importlib.util.find_spec("jax")]
        with tempfile.TemporaryDirectory(prefix="psd-") as folder:
            wrong = pathlib.Path(folder) / "wrong.py"
            wrong.write_text(WRONG + (WRONG_JAX if importlib.util.find_spec("jax") else ""), encoding="utf-8")
            configuration = pathlib.Path(folder) / "mypy.ini"
            configuration.write_text(CONFIGURATION, encoding="utf-8")
            done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", configuration, "--cache-dir", folder,
                                   package, *examples, wrong], env={**os.environ, "MYPYPATH": str(package.parent)}, text=True,
                                  capture_output=True, timeout=500, check=False)
        lines = done.stdout.splitlines()
        self.assertEqual([line for line in lines if "wrong.py" not in line and "error: " in line], [], done.stderr)
        for number in (3, 4, 5, 6, 7, 8, 9, 10, *([13] if importlib.util.find_spec("jax") else [])):
            self.assertTrue(any(f"wrong.py:{number}: error: " in line for line in lines), done.stdout)


if __name__ == "__main__":
    processes.main()
