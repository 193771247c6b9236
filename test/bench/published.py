"""How long a version takes from the call that publishes it until a reader behind a slow link has it in memory.

published.py --psd PSD --package FOLDER --rate RATE --density P --way patch|whole|xor [--size MIB] [--versions N] [--readers N]
             [--replicas N]

Prints one JSON object. A store of weights publishes one tensor of 16-bit values, of which the share P of elements changes from version to
version; a link of that rate (tbf) is between the daemon and the reader. `patch`: psd.Follower, which holds the version before.
`whole`: a psd.Follower that holds none. `xor`: the writer XORs the bytes with those of the version before, compresses the result
(zstd, level 1) and puts it into a directory, whose files a reader fetches over the same link, decompresses and XORs. Needs root.

With `--readers` the time is that of the last one. With `--replicas` they read from the leaves of a binary tree of replicas, all on
their side of the link, whose root alone reads over it. `daemon`: processor seconds of the daemon for each version, null for
`xor`."""

import argparse
import contextlib
import json
import pathlib
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[up] / folder) for up, folder in ((1, "integration"), (2, "scripts"))]

import namespaces
from bench_programs import processor_seconds

HERE, THERE = "10.79.0.2", "10.79.0.1"
PORT = 5500
KEPT = 2  # versions that each daemon keeps


def link(stack, rate):
    """Two places and a link of that rate between them."""
    for place in ("there", "here"):
        stack.callback(namespaces.remove, [place])
        namespaces.make(place)
    there, here = namespaces.name("there"), namespaces.name("here")
    namespaces.run("ip", "-n", there, "link", "add", "net", "type", "veth", "peer", "name", "net", "netns", here)
    for place, address in (("there", THERE), ("here", HERE)):
        namespaces.run("ip", "-n", namespaces.name(place), "addr", "add", f"{address}/24", "dev", "net")
        namespaces.run("ip", "-n", namespaces.name(place), "link", "set", "net", "up")
        namespaces.run(*namespaces.within(place), "tc", "qdisc", "add", "dev", "net", "root", "tbf", "rate", rate, "burst", "2mb", "latency", "50ms")


def within(place, command):
    return [*namespaces.within(place), *map(str, command)]


def started(stack, command, **options):
    process = subprocess.Popen(command, **options)
    stack.callback(lambda: (process.kill(), process.wait()))
    return process


def changed(values, density, random):
    """A copy in which about that share of the elements, at random places, has other bits."""
    out = values.copy()
    places = random.integers(0, values.size, int(density * values.size))
    out[places] ^= random.integers(1, 8, places.size, dtype=np.uint16)  # the last bits, as small steps change them
    return out


# --- The readers, in the other namespace ---------------------------------------------------------------------------------


def read_versions(address, whole):
    import psd
    follower, held = psd.Follower(address, connect_timeout=60), 0
    while True:
        held = follower.wait(at_least=held + 1)
        print(json.dumps({"at": time.monotonic(), "number": held, "bytes": follower.received_bytes}), flush=True)
        if whole:
            follower.close()
            follower = psd.Follower(address, connect_timeout=60)


def read_directory(elements):
    import pyarrow
    held = np.zeros(elements, np.uint16)
    with socket.create_connection((THERE, PORT)) as peer, peer.makefile("rb") as stream:
        while head := stream.read(16):
            size, raw = struct.unpack("<QQ", head)
            body = stream.read(size)
            held ^= np.frombuffer(pyarrow.decompress(body, decompressed_size=raw, codec="zstd", asbytes=True), np.uint16)
            print(json.dumps({"at": time.monotonic(), "bytes": size}), flush=True)


# --- The writers ---------------------------------------------------------------------------------------------------------


def daemon(stack, place, options, folder, name, publish, listen):
    config = {"listen": listen, "insecure": True, "publish": publish}
    (folder / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
    return started(stack, within(place, [options.psd, "--config", folder / f"{name}.json"]), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def tree(stack, options, folder):
    """Starts the replicas; returns the addresses that readers use."""
    addresses = [f"tcp://{HERE}:{PORT + 1 + each}" for each in range(options.replicas)]
    for each, address in enumerate(addresses):
        upstream = addresses[(each - 1) // 2] if each else f"tcp://{THERE}:{PORT}"
        daemon(stack, "here", options, folder, f"replica{each}", {"from": "upstream", "upstream": [upstream], "keep": KEPT}, [address])
    leaves = addresses[len(addresses) // 2:]
    return leaves or [f"tcp://{THERE}:{PORT}"]


def publish_versions(stack, options, folder, values, random):
    import psd
    publish = {"from": "publishers", "path": str(folder / "versions"), "keep": KEPT}
    source = daemon(stack, "there", options, folder, "source", publish, [f"unix://{folder / 'psd.sock'}", f"tcp://{THERE}:{PORT}"])
    publisher = psd.Publisher(f"unix://{folder / 'psd.sock'}", connect_timeout=30)
    stack.callback(publisher.close)
    publisher.publish(1, {"w": values})
    addresses = tree(stack, options, folder)
    readers = [started(stack, within("here", [sys.executable, __file__, "--read", addresses[each % len(addresses)], "--way", options.way,
                                              "--package", options.package]), stdout=subprocess.PIPE, text=True)
               for each in range(options.readers)]

    def seen():
        return [json.loads(reader.stdout.readline()) for reader in readers]
    seconds, travelled, before = [], [], seen()[-1]["bytes"]
    used = processor_seconds(source.pid)
    for step in range(2, options.versions + 2):
        values = changed(values, options.density, random)
        begun = time.monotonic()
        publisher.publish(step, {"w": values})
        each = seen()
        seconds.append(max(one["at"] for one in each) - begun)
        travelled.append(each[-1]["bytes"] - (0 if options.way == "whole" else before))
        before = each[-1]["bytes"]
    return seconds, travelled, (processor_seconds(source.pid) - used) / options.versions


def write_directory(stack, options, folder, values, random):
    import pyarrow
    serving = started(stack, within("there", [sys.executable, __file__, "--serve", folder]), stdout=subprocess.PIPE, text=True)
    serving.stdout.readline()
    reader = started(stack, within("here", [sys.executable, __file__, "--read", "directory", "--way", "xor", "--size", options.size]),
                     stdout=subprocess.PIPE, text=True)
    seconds, travelled, before = [], [], np.zeros_like(values)
    for number in range(options.versions + 1):
        begun = time.monotonic()
        raw = (values ^ before).tobytes()
        body = pyarrow.Codec("zstd", compression_level=1).compress(raw, asbytes=True)
        written = folder / f"{number}.tmp"
        written.write_bytes(struct.pack("<QQ", len(body), len(raw)) + body)
        written.rename(folder / f"{number}.version")
        seen = json.loads(reader.stdout.readline())
        if number > 0:
            seconds.append(seen["at"] - begun)
            travelled.append(seen["bytes"])
        before, values = values, changed(values, options.density, random)
    return seconds, travelled, None


def serve_directory(folder):
    """Sends the files of the directory, in order, as they appear."""
    with socket.create_server((THERE, PORT)) as listening:
        print("listening", flush=True)
        peer = listening.accept()[0]
        number = 0
        while True:
            path = pathlib.Path(folder) / f"{number}.version"
            if not path.exists():
                time.sleep(0.001)
                continue
            with path.open("rb") as file:
                peer.sendfile(file)
            number += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--psd")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--way", choices=("patch", "whole", "xor"), default="patch")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--versions", type=int, default=3)
    parser.add_argument("--readers", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=0)
    parser.add_argument("--package", help="the folder of the Python package")
    parser.add_argument("--read")
    parser.add_argument("--serve")
    options = parser.parse_args()
    if options.way == "xor" and (options.readers > 1 or options.replicas):
        parser.error("--way xor has one reader and no replicas")
    if options.package:
        sys.path.insert(0, options.package)
    elements = (options.size << 20) // 2
    if options.serve:
        return serve_directory(options.serve)
    if options.read:
        return read_directory(elements) if options.way == "xor" else read_versions(options.read, options.way == "whole")
    random = np.random.default_rng(1)
    values = random.standard_normal(elements, np.float32).view(np.uint32).__rshift__(16).astype(np.uint16)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psd-published-", dir="/dev/shm")))
        link(stack, options.rate)
        work = write_directory if options.way == "xor" else publish_versions
        seconds, travelled, used = work(stack, options, folder, values, random)
    print(json.dumps({"seconds": statistics.median(seconds), "bytes": statistics.median(travelled), "daemon": used}))


if __name__ == "__main__":
    main()
