"""The programs in trainer/python/examples."""

import importlib.util

import processes

EXAMPLES = processes.REPO / "trainer" / "python" / "examples"
_PACKAGES = {"jax_example.py": "jax", "hf_trainer.py": "transformers", "lightning_example.py": "pytorch_lightning"}


def runnable():
    """Those whose packages are installed."""
    return [path for path in sorted(EXAMPLES.glob("*.py")) if path.name not in _PACKAGES or importlib.util.find_spec(_PACKAGES[path.name])]
