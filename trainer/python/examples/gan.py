"""A GAN: two models with an optimizer each, at two daemons, since a daemon serves one model. It learns points on a ring:

    psd --set policy.type=locked
    psd --set policy.type=locked --listen tcp://localhost:5501
    torchrun --nproc-per-node 2 gan.py --generator tcp://localhost:5500 --critic tcp://localhost:5501
"""

import argparse

import torch
from torch import Tensor, nn

import psd.torch

NOISE = 4


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, outputs))


def ring(count: int) -> Tensor:
    """Points at a distance of about 2 from the middle."""
    angle = 2 * torch.pi * torch.rand(count)
    return (2 + 0.1 * torch.randn(count, 1)) * torch.stack((angle.cos(), angle.sin()), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generator", required=True, help="address of the generator's daemon")
    parser.add_argument("--critic", required=True, help="address of the critic's daemon")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    psd.torch.keep_freed_memory()
    torch.manual_seed(1)

    generator, critic, loss_of = network(NOISE, 2), network(2, 1), nn.functional.binary_cross_entropy_with_logits
    real, false = torch.ones(arguments.batch_size, 1), torch.zeros(arguments.batch_size, 1)
    with (psd.torch.Optimizer(torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.9)), arguments.generator) as generating,
          psd.torch.Optimizer(torch.optim.Adam(critic.parameters(), 2e-3, betas=(0.5, 0.9)), arguments.critic) as judging):
        torch.manual_seed(100 + generating.rank)  # each trainer draws other points
        for step in range(1, arguments.steps + 1):
            made = generator(torch.randn(arguments.batch_size, NOISE))
            judging.zero_grad()
            judged = loss_of(critic(ring(arguments.batch_size)), real) + loss_of(critic(made.detach()), false)
            judged.backward()
            judging.step()

            generating.zero_grad()
            fooled = loss_of(critic(made), real)  # with the critic that has just been pulled; its gradients are discarded above
            fooled.backward()
            generating.step()
            if step % 100 == 0:
                print(f"rank {generating.rank} step {step}: losses {judged.item():.3f} of the critic, {fooled.item():.3f} of the generator", flush=True)
    with torch.no_grad():
        radius = generator(torch.randn(2000, NOISE)).norm(dim=1)
    print(f"distance from the middle: {radius.mean():.2f} ± {radius.std():.2f}; of the data 2.00 ± 0.10")


if __name__ == "__main__":
    main()
