#!/usr/bin/env python3
"""The steps of psd-trainer's model of clicks in one process of PyTorch, whose 26 tables are EmbeddingBag(sparse=True).

Usage: torch_dlrm.py --seconds SECONDS [--batch-size N]. Adagrad, one thread. Networks, sizes of tables and how common ids are, are those
of trainer/model/dlrm.cc and trainer/dataset/clicks.cc; ids are row numbers here and batches are drawn before. Prints one JSON object
with the median seconds of a step. Needs torch.
"""
import argparse
import json
import statistics
import time

import torch
from torch import nn

CRITEO_IDS = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652, 2173, 4,
              7046547, 18, 15, 286181, 105, 142572)
SCALE, EXPONENT = 100, 1.05
DIM, HIDDEN, NUMBERS = 16, 64, 13
BATCHES = 50


class Clicks(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(count, DIM, mode="sum", sparse=True) for count in rows)
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIM))
        vectors = len(rows) + 1
        below = torch.tril_indices(vectors, vectors, -1)
        self.pairs = below[0] * vectors + below[1]
        self.top = nn.Sequential(nn.Linear(DIM + len(self.pairs), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, numbers, ids):
        dense = self.bottom(numbers)
        every = torch.stack([dense] + [table(ids[:, i:i + 1]) for i, table in enumerate(self.tables)], 1)
        products = torch.bmm(every, every.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([dense, products], 1)).squeeze(1)


def batches(rows, size):
    columns = []
    for count in rows:
        weights = torch.arange(1, count + 1, dtype=torch.float64) ** -EXPONENT
        columns.append(torch.searchsorted(torch.cumsum(weights, 0) / weights.sum(), torch.rand(BATCHES * size, dtype=torch.float64)))
    ids = torch.stack([column.clamp_(max=count - 1) for column, count in zip(columns, rows)], 1)
    for begin in range(0, BATCHES * size, size):
        yield torch.randn(size, NUMBERS), ids[begin:begin + size], torch.randint(0, 2, (size,)).float()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--batch-size", type=int, default=2048)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rows = [max(1, count // SCALE) for count in CRITEO_IDS]
    model = Clicks(rows)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    drawn = list(batches(rows, arguments.batch_size))
    times = []
    end = time.perf_counter() + arguments.seconds
    while time.perf_counter() < end or len(times) < 2 * BATCHES:
        numbers, ids, labels = drawn[len(times) % BATCHES]
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(numbers, ids), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    print(json.dumps({"median_s": statistics.median(times[BATCHES:]), "steps": len(times)}))


if __name__ == "__main__":
    main()
