"""A psd.torch.DiLoCo learner whose steps take a given time, most of which it sleeps, so that learners of different
speed are possible on few cores. For scripts/bench.

Usage: paced_learner.py ADDRESS RANK WORLD STEP_MS SAMPLES. Prints the end of each step, in seconds since 1970. Runs
until it is killed.
"""
import sys
import time


def main():
    import torch
    from torch import nn

    import psd.torch

    address, rank, world, step_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) / 1000
    samples = int(sys.argv[5])  # per step
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    inputs, labels = torch.randn(samples, 64, generator=generator), torch.randint(10, (samples,), generator=generator)
    psd.torch.DiLoCo(model, inner, address, rank=rank, world_size=world, samples=samples)
    while True:
        begun = time.monotonic()
        inner.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        time.sleep(max(step_s - (time.monotonic() - begun), 0))
        inner.step()  # exchanges when due
        print(f"{time.time():.6f}", flush=True)


if __name__ == "__main__":
    main()
