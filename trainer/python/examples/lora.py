"""Low-rank adaptation: a trained model is frozen, and small matrices beside its layers are trained for another task. The
daemon serves only those:

    psd --set policy.type=locked
    torchrun --nproc-per-node 2 lora.py --server tcp://localhost:5500
"""

import argparse

import torch
from torch import Tensor, nn

import psd.torch

FEATURES, CLASSES = 16, 4


class Adapted(nn.Module):
    """A frozen linear layer, and the product of two small matrices, which starts as zero."""

    def __init__(self, layer: nn.Linear, rank: int):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, inputs: Tensor) -> Tensor:
        changed: Tensor = self.layer(inputs) + inputs @ self.down.T @ self.up.T
        return changed

    def merged(self) -> nn.Linear:
        """One layer that computes the same."""
        self.layer.weight.data += self.up.detach() @ self.down.detach()
        return self.layer


def points(count: int, turn: Tensor) -> tuple[Tensor, Tensor]:
    """Points around a center of each class. `turn`: a matrix, by which tasks differ."""
    labels = torch.randint(CLASSES, (count,))
    return (3 * torch.eye(CLASSES, FEATURES)[labels] + torch.randn(count, FEATURES)) @ turn, labels


@torch.no_grad()
def accuracy(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    return float((model(inputs).argmax(1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="address of the daemon; default: the environment's PSD_SERVER")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rank", type=int, default=4, help="of the small matrices")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    psd.torch.keep_freed_memory()
    torch.manual_seed(1)

    first, second = torch.eye(FEATURES), torch.linalg.qr(torch.randn(FEATURES, FEATURES))[0]
    model = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    local = torch.optim.AdamW(model.parameters(), lr=3e-3)  # without psd; in practice the model comes from a file
    for _ in range(100):
        inputs, labels = points(64, first)
        local.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        local.step()

    test = points(1000, second)
    before = accuracy(model, *test)
    for place, layer in enumerate(model):
        if isinstance(layer, nn.Linear):
            model[place] = Adapted(layer, arguments.rank)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with psd.torch.Optimizer(torch.optim.AdamW(trained, lr=1e-2), arguments.server, samples=64) as optimizer:
        torch.manual_seed(100 + optimizer.rank)  # each trainer draws other points
        for _ in range(arguments.steps):
            inputs, labels = points(64, second)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    whole = nn.Sequential(*(layer.merged() if isinstance(layer, Adapted) else layer for layer in model))
    print(f"served {sum(map(torch.numel, trained))} of {sum(map(torch.numel, model.parameters()))} values; accuracy {before:.1%} before, "
          f"{accuracy(whole, *test):.1%} with adapters")


if __name__ == "__main__":
    main()
