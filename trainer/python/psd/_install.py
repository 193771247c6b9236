"""Refuses to import where files of another distribution that is named psd lie in this package's folder.

Each module that a program imports by name imports this one first: the package's __init__.py may be the other distribution's.
"""

import pathlib
import sys

DISTRIBUTION = "psd-server"


def _fault() -> str:
    folder = pathlib.Path(__file__).parent
    for pattern in ("psd-*.dist-info", "psd-*.egg-info"):
        for other in folder.parent.glob(pattern):
            return f"{folder} has files of another distribution as well, which is named psd ({other.name})"
    if getattr(sys.modules[__package__], "__distribution__", None) != DISTRIBUTION:
        return f"{folder}/__init__.py is not that of {DISTRIBUTION}: another distribution has replaced or removed it"
    return ""


if _message := _fault():
    raise ImportError(f"{_message}; run 'pip uninstall psd {DISTRIBUTION}', then install {DISTRIBUTION} again")
