"""Predicts ratings: users and films are rows of tables at the daemon, by the ids of MovieLens' ratings.csv:

    psd --set 'optimizer={"type":"adagrad","lr":0.1}' --set policy.type=locked
    torchrun --nproc-per-node 2 movielens.py ratings.csv --server tcp://localhost:5500
"""

import argparse
import os
import pathlib

import numpy as np
import torch
from torch import Tensor, nn

import psd.torch


class Ratings(nn.Module):
    """A mean, the biases of user and film, and the inner product of their factors. The last value of a row is the
    bias."""

    def __init__(self, dim: int):
        super().__init__()
        self.mean = nn.Parameter(torch.tensor(3.5))
        self.users = psd.torch.Embedding("user", dim + 1, initial="normal", scale=0.1, seed=1)
        self.films = psd.torch.Embedding("film", dim + 1, initial="normal", scale=0.1, seed=2)

    def forward(self, users: Tensor, films: Tensor) -> Tensor:
        user, film = self.users(users), self.films(films)
        stars: Tensor = self.mean + user[:, -1] + film[:, -1] + (user[:, :-1] * film[:, :-1]).sum(1)
        return stars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ratings", type=pathlib.Path, help="lines of userId,movieId,rating,… after a header")
    parser.add_argument("--server", help="address of the daemon; default: the environment's PSD_SERVER")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--decay", type=float, default=0.02, help="weight decay of factors and biases")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    psd.torch.keep_freed_memory()

    table = np.loadtxt(arguments.ratings, delimiter=",", skiprows=1, usecols=(0, 1, 2))
    np.random.default_rng(1).shuffle(table)
    users, films = (torch.from_numpy(table[:, column].astype(np.int64)) for column in (0, 1))
    stars = torch.from_numpy(table[:, 2].astype(np.float32))
    test = slice(0, len(stars) // 10)
    rank, trainers = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    mine = torch.arange(len(stars) // 10 + rank, len(stars), trainers)

    model = Ratings(arguments.dim)
    with psd.torch.Optimizer(model, arguments.server) as optimizer:
        for epoch in range(arguments.epochs):
            for batch in mine[torch.randperm(len(mine))].split(arguments.batch_size):
                optimizer.zero_grad()
                error = model(users[batch], films[batch]) - stars[batch]
                tastes = model.users(users[batch]).square().sum(1) + model.films(films[batch]).square().sum(1)
                (error.square() + arguments.decay * tastes).mean().backward()
                optimizer.step(samples=len(batch))
            with torch.no_grad():
                squares = (model(users[test], films[test]) - stars[test]).square().mean()
            print(f"rank {rank} epoch {epoch + 1}: RMSE {squares.sqrt().item():.3f} on {test.stop} ratings left out", flush=True)


if __name__ == "__main__":
    main()
