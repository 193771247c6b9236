"""Measurements of psd-trainer bench from Python: a pull or a push of a given size, small calls, a training step of
mnist_cnn, or the optimizer's step of many parameters, of float32 or bfloat16.

Usage: python_client.py pull|push|calls|train|parameters --server ADDRESS --package DIR [--transport HOW] [--size BYTES] [--seconds
SECONDS]. DIR holds the package psd. Prints one JSON object with the median in seconds. A step needs torch; blocks of
steps with psd.torch.Optimizer and with torch.optim.SGD alternate in one process.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

BATCH = 32
BLOCK_STEPS = 10


def transfers(arguments):
    """The seconds of each transfer, one after the other."""
    import psd

    model = psd.Model("bench", {"weights": (arguments.size // 4,)})  # the same as psd-trainer bench's, so that one daemon serves both
    with psd.Client(arguments.server, transport=arguments.transport) as client:
        values = model.zeros()
        client.join(model, values, 0, 1)
        gradient = model.zeros()
        gradient.fill(1e-6)
        call = (lambda: client.pull(values)) if arguments.operation == "pull" else (lambda: client.push(gradient))
        seconds, deadline = [], None
        while len(seconds) < 3 or time.perf_counter() < deadline:
            begun = time.perf_counter()
            call()
            if deadline is None:  # the first one warms memory on both sides
                deadline = time.perf_counter() + arguments.seconds
                continue
            seconds.append(time.perf_counter() - begun)
    return {"bytes": 4 * model.size, "rounds": len(seconds), "median_s": statistics.median(seconds)}


def calls(arguments):
    """The median microseconds of small calls, and how often a thread of the process sleeps in each."""
    import resource

    import psd

    model = psd.Model("small", {"w": (1024,)})
    with psd.Client(arguments.server, transport=arguments.transport) as client:
        values, gradient = model.zeros(), model.zeros()
        gradient.fill(1e-6)  # zeros would not travel
        client.join(model, values, 0, 1)
        taken = {}
        for name, call in {"pull": lambda: client.pull(values), "push": lambda: client.push(gradient), "empty": lambda: client.ping(1)}.items():
            for _ in range(100):
                call()
            seconds, before = [], resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
            deadline = time.perf_counter() + arguments.seconds
            while not seconds or time.perf_counter() < deadline:
                begun = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - begun)
            taken[f"{name}_us"] = 1e6 * statistics.median(seconds)
            taken[f"{name}_sleeps"] = (resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before) / len(seconds)
    return taken


def steps(arguments):
    import torch
    from torch import nn

    import psd.torch

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "trainer" / "python" / "examples"))
    from mnist import network

    torch.set_num_threads(1)
    psd.torch.keep_freed_memory()  # like psd-trainer
    torch.manual_seed(1)
    served, local = network(), network()
    images, classes = torch.randint(256, (1000, 1, 28, 28), dtype=torch.uint8), torch.randint(10, (1000,))
    with psd.torch.Optimizer(served, arguments.server, rank=0, world_size=1, transport=arguments.transport,
                             samples=BATCH) as optimizer:
        pairs = {"server": (served, optimizer), "local": (local, torch.optim.SGD(local.parameters(), 0.01))}
        seconds = {name: [] for name in pairs}
        deadline = time.perf_counter() + arguments.seconds
        while len(seconds["local"]) < 2 * BLOCK_STEPS or time.perf_counter() < deadline:
            for name, (model, each) in pairs.items():
                for _ in range(BLOCK_STEPS):
                    begun = time.perf_counter()
                    batch = torch.randint(1000, (BATCH,))
                    each.zero_grad()
                    nn.functional.cross_entropy(model(images[batch].float() / 255), classes[batch]).backward()
                    each.step()
                    seconds[name].append(time.perf_counter() - begun)
    # The first block warms up.
    return {"steps": len(seconds["server"]), **{f"{name}_median_s": statistics.median(taken[BLOCK_STEPS:])
                                                for name, taken in seconds.items()}}


def parameters(arguments):
    """The seconds of step() for 150 parameters of 64 elements, and of a push and a pull of the same arrays alone; and the
    bytes that a step moves."""
    import torch
    from torch import nn

    import psd.torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.ParameterList([nn.Parameter(torch.randn(64, dtype=getattr(torch, arguments.dtype))) for _ in range(150)])
    optimizer = psd.torch.Optimizer(torch.optim.AdamW(model.parameters(), 1e-4), arguments.server, transport=arguments.transport)

    def compute():
        optimizer.zero_grad()
        sum(each.sum() for each in model).backward()

    with optimizer:
        client, steps, transfers = optimizer.client, [], []
        deadline = time.perf_counter() + arguments.seconds
        while len(steps) < 2 * BLOCK_STEPS or time.perf_counter() < deadline:
            for _ in range(BLOCK_STEPS):
                compute()
                before, begun = client.bytes_pushed + client.bytes_pulled, time.perf_counter()
                optimizer.step()
                steps.append(time.perf_counter() - begun)
                moved = client.bytes_pushed + client.bytes_pulled - before
            for _ in range(BLOCK_STEPS):
                compute()  # so that threads and caches are as before a step
                begun = time.perf_counter()
                client.push(optimizer._gradients)
                client.pull(optimizer._values)
                transfers.append(time.perf_counter() - begun)
            optimizer._note()
    median = {name: statistics.median(taken[BLOCK_STEPS:]) for name, taken in {"step": steps, "transfers": transfers}.items()}
    return {"beyond_s": median["step"] - median["transfers"], "transfers_s": median["transfers"], "bytes": moved}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operation", choices=("pull", "push", "calls", "train", "parameters"))
    parser.add_argument("--server", required=True)
    parser.add_argument("--package", required=True)
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--size", type=int, default=64 << 20)
    parser.add_argument("--seconds", type=float, default=2)
    arguments = parser.parse_args()
    sys.path.insert(0, arguments.package)
    measure = {"calls": calls, "train": steps, "parameters": parameters}.get(arguments.operation, transfers)
    print(json.dumps(measure(arguments)))


if __name__ == "__main__":
    main()
