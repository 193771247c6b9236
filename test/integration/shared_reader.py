"""Reads versions from shared memory until it is killed. Prints each one's number once it has checked that all its elements
are equal, also at the end of their use, and that numbers rise. Usage: shared_reader.py FILE SEED"""

import random
import sys
import time

import numpy as np

import psd


def value_of(tensors):
    """The value of all elements; ends this process if there are several."""
    values = {float(edge(tensor)) for tensor in tensors.values() for edge in (np.min, np.max)}
    if len(values) != 1:
        sys.exit(f"a mixture of versions: {values}")
    return values.pop()


def main():
    chance, last = random.Random(int(sys.argv[2])), (0, 0.0)
    with psd.SharedVersions(sys.argv[1]) as versions:
        while True:
            number = versions.wait()
            tensors = versions.tensors()
            found = (number, value_of(tensors))
            if found < last or number == last[0]:
                sys.exit(f"version {found} after {last}")
            last = found
            if chance.random() < 0.3:  # a slow reader
                time.sleep(chance.random() / 20)
            if value_of(tensors) != found[1]:
                sys.exit(f"version {number} has changed in use")
            print(number, flush=True)


main()
