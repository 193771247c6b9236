"""Stands before the module psd.psd of the other distribution named psd, which its __init__.py imports: so that is refused too."""

from .. import _install  # noqa: F401
