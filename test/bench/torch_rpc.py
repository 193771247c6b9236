"""PyTorch RPC as a parameter server: pulls one float32 tensor, and pushes a gradient that SGD applies.

Usage: torch_rpc.py --size BYTES --seconds SECONDS. Two processes on the loopback interface. Prints one JSON object with
the medians in bytes per second. Needs torch.
"""
import argparse
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as multiprocessing

SERVER, TRAINER = "server", "trainer"
parameters = None


def allocate(elements):
    global parameters
    parameters = torch.ones(elements)


def pull():
    return parameters


def push(gradient):
    parameters.add_(gradient, alpha=-0.01)


def median_rate(call, size, seconds):
    call()  # warms connections and pages
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return size / statistics.median(times)


def run(rank, rendezvous, size, seconds, results):
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + rendezvous)
    rpc.init_rpc((SERVER, TRAINER)[rank], rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 1:
        gradient = torch.ones(size // 4)
        rpc.rpc_sync(SERVER, allocate, args=(size // 4,))
        results.put({
            "pull_bytes_per_s": median_rate(lambda: rpc.rpc_sync(SERVER, pull), size, seconds),
            "push_bytes_per_s": median_rate(lambda: rpc.rpc_sync(SERVER, push, args=(gradient,)), size, seconds),
        })
    rpc.shutdown()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    results = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = os.path.join(folder, "rendezvous")
        multiprocessing.spawn(run, args=(rendezvous, arguments.size, arguments.seconds, results), nprocs=2)
    print(json.dumps(results.get()))


if __name__ == "__main__":
    main()
