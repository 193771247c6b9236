"""Predicts clicks by a logistic regression on a file of Criteo's form: label, 13 numbers and 26 categories, separated by tabs.

    psd --set 'optimizer={"type":"adagrad","lr":0.1}' --set exit_when_done=false
    torchrun --nproc-per-node 2 click_logs.py train.tsv --server tcp://localhost:5500

The model is that of psd-trainer, which can score it, and continue to train it:

    psd-trainer eval --model logistic --data criteo:train.tsv:test=train.tsv
"""

import argparse
import os
import pathlib

import numpy as np
import torch
from torch import Tensor, nn

import psd.torch

NUMBERS, CATEGORIES = 13, 26


class Logistic(nn.Module):
    """A bias, and a weight for each feature: rows of one value."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.weights = psd.torch.Embedding("weights", 1, initial="zero", scale=0)

    def forward(self, ids: Tensor, values: Tensor) -> Tensor:
        logits: Tensor = self.bias + (self.weights(ids).squeeze(-1) * values).sum(1)
        return logits


def read(path: pathlib.Path) -> tuple[Tensor, Tensor, Tensor]:
    """The ids and values of all features, and the labels."""
    ids, values, labels = [], [], []
    number_ids = [psd.hash_category(field, "") for field in range(NUMBERS)]
    with path.open("rb") as file:
        for line in file:
            label, *fields = line.rstrip(b"\r\n").split(b"\t")
            numbers = [max(int(text), 0) if text else 0 for text in fields[:NUMBERS]]
            ids.append(number_ids + [psd.hash_category(NUMBERS + i, text) for i, text in enumerate(fields[NUMBERS:])])
            values.append([*np.log1p(numbers), *[1.0] * CATEGORIES])
            labels.append(int(label))
    # Ids are unsigned; the same bits as int64.
    return torch.from_numpy(np.array(ids, np.uint64).view(np.int64)), torch.tensor(values), torch.tensor(labels, dtype=torch.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clicks", type=pathlib.Path, help="a file of Criteo's form")
    parser.add_argument("--server", help="address of the daemon; default: the environment's PSD_SERVER")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=256)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)  # all trainers shuffle alike

    ids, values, labels = read(arguments.clicks)
    rank, trainers = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    model = Logistic()
    with psd.torch.Optimizer(model, arguments.server) as optimizer:
        for epoch in range(arguments.epochs):
            losses = []
            for batch in torch.randperm(len(labels))[rank::trainers].split(arguments.batch_size):
                optimizer.zero_grad()
                loss = nn.functional.binary_cross_entropy_with_logits(model(ids[batch], values[batch]), labels[batch])
                loss.backward()
                optimizer.step(samples=len(batch))
                losses.append(loss.item())
            print(f"rank {rank} epoch {epoch + 1}: log loss {np.mean(losses):.4f} before the updates", flush=True)


if __name__ == "__main__":
    main()
