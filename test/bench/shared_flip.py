"""How long a reader of shared memory takes to change to the next version, once psd follow has written it.

shared_flip.py --psd PSD --package FOLDER [--size MIB] [--versions N]

Prints one JSON object: the median and the longest time of `wait()` and `tensors()` of a psd.SharedVersions that holds the version
before. A store of weights publishes one tensor of 16-bit values, of which 1 % of the elements change from version to version."""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from published import changed, started

WAIT_S = 60


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--psd", required=True)
    parser.add_argument("--package", required=True, help="the folder of the Python package")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--versions", type=int, default=20)
    options = parser.parse_args()
    sys.path.insert(0, options.package)
    import psd

    random, took = np.random.default_rng(1), []
    values = random.integers(0, 1 << 16, (options.size << 20) // 2, np.uint16)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psd-flip-", dir="/dev/shm")))
        address, file = f"unix://{folder / 'psd.sock'}", folder / "versions"
        config = {"listen": [address], "publish": {"from": "publishers", "keep": 2}}
        (folder / "psd.json").write_text(json.dumps(config), encoding="utf-8")
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started(stack, [options.psd, "--config", folder / "psd.json"], **quiet)
        publisher = stack.enter_context(contextlib.closing(psd.Publisher(address, connect_timeout=WAIT_S)))
        publisher.publish(1, {"w": values})
        started(stack, [options.psd, "follow", "--server", address, "--shared", file], **quiet)
        watcher, reader = (stack.enter_context(psd.SharedVersions(file)) for _ in range(2))
        reader.wait(timeout=WAIT_S)
        number = watcher.wait(timeout=WAIT_S)
        for step in range(2, options.versions + 2):
            values = changed(values, 0.01, random)
            publisher.publish(step, {"w": values})
            number = watcher.wait(at_least=number + 1, timeout=WAIT_S)
            begun = time.monotonic()
            reader.wait(at_least=number, timeout=WAIT_S)
            held = reader.tensors()["w"]
            took.append(time.monotonic() - begun)
            if not np.array_equal(held.view(np.uint16), values):
                raise SystemExit(f"version {number} has other values")
            del held
    print(json.dumps({"median_s": statistics.median(took), "longest_s": max(took), "versions": len(took)}))


if __name__ == "__main__":
    main()
