"""Shadows the module psd.psd of the other distribution named psd: its __init__.py imports that module, and so fails
with the error of _install.py, too."""

from .. import _install  # noqa: F401
