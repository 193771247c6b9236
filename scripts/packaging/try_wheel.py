"""try_wheel.py FOLDER: checks that the psd-server in this virtual environment serves and trains."""

import importlib.metadata
import pathlib
import re
import selectors
import subprocess
import sys

import psd

WAIT_S = 60


def ready(daemon):
    """The daemon's address, from its log."""
    selector = selectors.DefaultSelector()
    selector.register(daemon.stderr, selectors.EVENT_READ)
    log = ""
    while (found := re.search(r"ready: listening on (\S+), pid", log)) is None:
        if not selector.select(WAIT_S) or not (line := daemon.stderr.readline()):
            sys.exit(f"the daemon is not ready: {log}")
        log += line
    return found[1]


def main():
    folder = pathlib.Path(sys.argv[1])
    program = folder / "bin" / "psd"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()
    installed = importlib.metadata.version("psd-server")
    if said[:2] != ["psd", installed] or psd.__version__ != installed:
        sys.exit(f"psd-server {installed} has a daemon that says {said}, and a package that says {psd.__version__}")
    for path in ("share/psd/configs/hogwild.json", "share/man/man1/psd.1.gz"):
        if not (folder / path).is_file():
            sys.exit(f"{path} is missing")
    with subprocess.Popen([program, "--listen", "tcp://localhost:0"], stderr=subprocess.PIPE, text=True) as daemon:
        try:
            with psd.Client(ready(daemon)) as client:
                model = psd.Model("m", {"w": (3,)})
                client.join(model, model.zeros())
                client.push(model.zeros())
        finally:
            daemon.terminate()


if __name__ == "__main__":
    main()
