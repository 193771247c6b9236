"""Handwritten digits with PyTorch, by any number of trainers, which can join and leave at any time:

    psd --set optimizer.lr=0.03 --set 'world_size={"min":1,"max":8}'
    python mnist.py --data .data/mnist_5k --server tcp://localhost:5500      # in as many terminals as you like
"""

import argparse
import pathlib
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import psd.torch


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
                         nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))


def images(folder: pathlib.Path, part: str) -> tuple[Tensor, Tensor]:
    """Images and labels from MNIST's IDX files."""
    pixels = np.fromfile(folder / f"{part}-images-idx3-ubyte", np.uint8)[16:].reshape(-1, 1, 28, 28)
    labels = np.fromfile(folder / f"{part}-labels-idx1-ubyte", np.uint8)[8:]
    return (torch.from_numpy(pixels).float() / 255 - 0.1307) / 0.3081, torch.from_numpy(labels).long()


def accuracy(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum().item()) for x, y in zip(inputs.split(500), labels.split(500)))
    return right / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of MNIST's IDX files")
    parser.add_argument("--server", help="address of the daemon; default: the environment's PSD_SERVER")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the data, by all trainers together")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--overlap", action="store_true", help="send gradients while others are computed")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    psd.torch.keep_freed_memory()
    torch.manual_seed(1)

    model = network()
    data = TensorDataset(*images(arguments.data, "train"))
    samples, seconds = 0, 0.0
    with psd.torch.Optimizer(model, arguments.server, overlap=arguments.overlap, samples=arguments.batch_size) as optimizer:
        sampler = psd.torch.AssignedSampler(optimizer, data, arguments.batch_size, arguments.epochs)
        begun = time.perf_counter()
        for inputs, labels in DataLoader(data, batch_sampler=sampler):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            samples += len(inputs)
        seconds = time.perf_counter() - begun
    print(f"rank {optimizer.rank}: {samples} samples, {samples / seconds:.0f} a second; "
          f"test accuracy {accuracy(model, *images(arguments.data, 't10k')):.2%}")


if __name__ == "__main__":
    main()
