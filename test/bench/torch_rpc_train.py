"""The program of PyTorch's parameter server tutorial: a ConvNet at a server, and a trainer that runs forward, backward
and a step there by RPC.

Usage: torch_rpc_train.py --warm STEPS --steps STEPS [--trainers N]. Each process computes with one thread; batches of
32 images of random numbers, generated before the clock starts. Prints one JSON object: steps per second, and CPU
milliseconds per step of all processes. With two trainers autograd refuses the second's backward pass, because the first
has changed the parameters. Needs torch.
"""
import argparse
import json
import os
import tempfile
import threading
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as multiprocessing
from torch import nn, optim
from torch.distributed.optim import DistributedOptimizer

BATCH, BATCHES = 32, 16
SERVER = "parameter_server"
server = None
server_lock = threading.Lock()


class Net(nn.Module):
    """The network of examples/mnist, like psd's mnist_cnn."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = nn.functional.relu(self.conv1(x))
        x = nn.functional.max_pool2d(nn.functional.relu(self.conv2(x)), 2)
        x = torch.flatten(self.dropout1(x), 1)
        x = self.dropout2(nn.functional.relu(self.fc1(x)))
        return nn.functional.log_softmax(self.fc2(x), dim=1)


def call_method(method, rref, *args):
    return method(rref.local_value(), *args)


def remote_method(method, rref, *args):
    return rpc.rpc_sync(rref.owner(), call_method, args=[method, rref, *args])


class ParameterServer(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Net()

    def forward(self, inputs):
        return self.model(inputs)

    def get_param_rrefs(self):
        return [rpc.RRef(parameter) for parameter in self.model.parameters()]


def get_parameter_server():
    global server
    with server_lock:
        if server is None:
            server = ParameterServer()
        return server


def cpu_seconds():
    return time.process_time()


class Trainer:
    def __init__(self, rank):
        self.server = rpc.remote(SERVER, get_parameter_server)
        self.optimizer = DistributedOptimizer(optim.SGD, remote_method(ParameterServer.get_param_rrefs, self.server), lr=0.03)
        generator = torch.Generator().manual_seed(rank)
        self.images = torch.randn(BATCHES, BATCH, 1, 28, 28, generator=generator)
        self.labels = torch.randint(10, (BATCHES, BATCH), generator=generator)

    def train(self, steps):
        for step in range(steps):
            with dist_autograd.context() as context:
                outputs = remote_method(ParameterServer.forward, self.server, self.images[step % BATCHES])
                loss = nn.functional.nll_loss(outputs, self.labels[step % BATCHES])
                dist_autograd.backward(context, [loss])
                self.optimizer.step(context)


def run(rank, rendezvous, warm, steps, trainers, results):
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + rendezvous, num_worker_threads=16)
    rpc.init_rpc(SERVER if rank == 0 else f"trainer{rank}", rank=rank, world_size=trainers + 1, rpc_backend_options=options)
    if rank > 0:
        trainer = Trainer(rank)
        trainer.train(warm)
        wall, cpu = time.perf_counter(), cpu_seconds() + rpc.rpc_sync(SERVER, cpu_seconds)
        trainer.train(steps)
        results.put({"steps_per_s": steps / (time.perf_counter() - wall),
                     "cpu_ms": (cpu_seconds() + rpc.rpc_sync(SERVER, cpu_seconds) - cpu) / steps * 1e3})
    rpc.shutdown()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--warm", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--trainers", type=int, default=1)
    arguments = parser.parse_args()
    results = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = os.path.join(folder, "rendezvous")
        multiprocessing.spawn(run, args=(rendezvous, arguments.warm, arguments.steps, arguments.trainers, results),
                              nprocs=arguments.trainers + 1)
    print(json.dumps(results.get()))


if __name__ == "__main__":
    main()
