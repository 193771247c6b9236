"""A trainer that counts in rows: every push subtracts 1 from the value of some rows, drawn like the words of synthetic
documents.

Usage: racing_rows.py ADDRESS RANK WORLD_SIZE PUSHES --package DIR. The daemon's optimizer is SGD with a rate of 1.
Prints one JSON object: the number of pushed rows, and that of the most frequent word. DIR holds the package psd.
"""
import argparse
import json
import pathlib
import sys

WORDS, LENGTH, BATCH = 10_000, 76, 32


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    for name in ("rank", "world_size", "pushes"):
        parser.add_argument(name, type=int)
    parser.add_argument("--package", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.package))
    import numpy as np

    import psd

    model = psd.Model("racing", {"bias": (1,)}, [psd.Table("weights", 1, "zero")])
    chances = (1 + np.arange(WORDS)) ** -1.05
    random = np.random.default_rng(arguments.rank)
    counts = np.zeros(WORDS, np.int64)
    with psd.Client(arguments.address) as client:
        values = model.zeros()
        client.join(model, values, arguments.rank, arguments.world_size)
        rows, nothing = client.rows(), model.zeros()
        for _ in range(arguments.pushes):
            words = np.unique(random.choice(WORDS, BATCH * LENGTH, p=chances / chances.sum()).astype(np.uint64))
            rows.make([("weights", words)])
            rows.gradients("weights")[:] = 1
            client.push(nothing, rows=rows)
            counts[words.astype(np.int64)] += 1
    print(json.dumps({"pushed": int(counts.sum()), "commonest": int(counts[0])}))


if __name__ == "__main__":
    main()
