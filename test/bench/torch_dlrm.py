"""The steps of psd-trainer's click model in one process of PyTorch, whose 26 tables are EmbeddingBag(sparse=True).

Usage: torch_dlrm.py --seconds SECONDS [--batch-size N] [--scale N]
       torch_dlrm.py --steps STEPS [--batch-size N] [--scale N]
One thread. Networks, table sizes and id frequencies are those of trainer/model/dlrm.cc and trainer/dataset/clicks.cc,
and labels are drawn as there, from a teacher with effects of the same size; ids are row numbers here, and batches are
drawn in advance. With --seconds it repeats Adagrad steps over few batches for that time; with --steps it trains, each
batch once, with Adagrad for the tables and Adam for the rest, and scores held-out clicks. Prints one JSON object with
the median seconds of a step, and with --steps "auc". Needs torch.
"""
import argparse
import json
import statistics
import time

import torch
from torch import nn

CRITEO_IDS = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652, 2173, 4,
              7046547, 18, 15, 286181, 105, 142572)
EXPONENT = 1.05
DIM, HIDDEN, NUMBERS = 16, 64, 13
BATCHES = 50
BASE, NUMBER_EFFECT, ID_EFFECT, PAIR_EFFECT = -1.5, 0.2, 0.25, 0.15  # of the teacher's log-odds
HELD_OUT = 40_000


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


class Teacher:
    """Draws clicks from known probabilities."""

    def __init__(self, rows):
        self.chances = []
        for count in rows:
            weights = torch.arange(1, count + 1, dtype=torch.float64) ** -EXPONENT
            self.chances.append(torch.cumsum(weights, 0) / weights.sum())
        self.effects = [torch.randn(count, 4) for count in rows]  # of an id, and the factors that are multiplied with the neighbor's
        self.numbers = NUMBER_EFFECT * torch.randn(NUMBERS)

    def draw(self, size):
        numbers = torch.randn(size, NUMBERS)
        ids = torch.stack([torch.searchsorted(chances, torch.rand(size, dtype=torch.float64)).clamp_(max=len(chances) - 1)
                           for chances in self.chances], 1)
        odds = BASE + numbers @ self.numbers
        before = torch.zeros(size, 3)
        for column, effects in enumerate(self.effects):
            effect = effects[ids[:, column]]
            odds += ID_EFFECT * effect[:, 0] + PAIR_EFFECT * (effect[:, 1:] * before).sum(1)
            before = effect[:, 1:]
        return numbers, ids, (torch.rand(size) < torch.sigmoid(odds)).float()


def auc(scores, labels):
    """The probability that a click has a higher score than a non-click."""
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    clicks = labels.sum().item()
    return ((ranks[labels == 1].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(scores) - clicks))).item()


def timed(model, optimizers, batch):
    """The seconds of a step."""
    numbers, ids, labels = batch
    start = time.perf_counter()
    model.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(model(numbers, ids), labels).backward()
    for optimizer in optimizers:
        optimizer.step()
    return time.perf_counter() - start


def for_seconds(model, teacher, arguments):
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    drawn = [teacher.draw(arguments.batch_size) for _ in range(BATCHES)]
    times = []
    end = time.perf_counter() + arguments.seconds
    while time.perf_counter() < end or len(times) < 2 * BATCHES:
        times.append(timed(model, [optimizer], drawn[len(times) % BATCHES]))
    return {"median_s": statistics.median(times[BATCHES:]), "steps": len(times)}


def for_steps(model, teacher, arguments):
    beside = [parameter for name, parameter in model.named_parameters() if not name.startswith("tables.")]
    optimizers = [torch.optim.Adagrad(model.tables.parameters(), lr=0.05), torch.optim.Adam(beside, lr=0.001)]
    times = [timed(model, optimizers, teacher.draw(arguments.batch_size)) for _ in range(arguments.steps)]
    numbers, ids, labels = teacher.draw(HELD_OUT)
    with torch.no_grad():
        scores = model(numbers, ids)
    return {"median_s": statistics.median(times[len(times) // 10:]), "steps": len(times), "auc": auc(scores, labels)}


def main():
    parser = argparse.ArgumentParser()
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--seconds", type=float)
    length.add_argument("--steps", type=int)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--scale", type=int, default=100)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rows = [max(2, count // arguments.scale) for count in CRITEO_IDS]
    model, teacher = Clicks(rows), Teacher(rows)
    work = for_seconds if arguments.seconds is not None else for_steps
    print(json.dumps(work(model, teacher, arguments)))


if __name__ == "__main__":
    main()
