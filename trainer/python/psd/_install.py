"""Raises ImportError if this package's folder also has files of another distribution, which is named psd.

Every public module imports this one first, since the package's __init__.py may be that of the other distribution.
"""

import pathlib
import sys

DISTRIBUTION = "psd-server"


def _fault() -> str:
    folder = pathlib.Path(__file__).parent
    for pattern in ("psd-*.dist-info", "psd-*.egg-info"):
        for other in folder.parent.glob(pattern):
            return f"{folder} has files of another distribution as well, which is named psd ({other.name})"
    if getattr(sys.modules[__name__.rpartition(".")[0]], "__distribution__", None) != DISTRIBUTION:
        return f"{folder}/__init__.py is not that of {DISTRIBUTION}: another distribution has replaced or removed it"
    return ""


if _message := _fault():
    raise ImportError(f"{_message}; run 'pip uninstall psd {DISTRIBUTION}', then install {DISTRIBUTION} again")
