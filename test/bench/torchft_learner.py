"""A torchft DiLoCo learner over Gloo, which scripts/bench compares with psd's; with --lighthouse the server by which
its learners find each other.

Usage: torchft_learner.py --lighthouse | torchft_learner.py --at ADDRESS --replica N --period H. Prints the lighthouse's
address; or for each step its end, in seconds since 1970, and the number of learners in the newest round. The model is
psd's `mlp`, the data are random numbers. Runs until it is killed. Needs torchft.
"""
import argparse
import datetime
import logging
import sys
import time

BATCH, BATCHES = 32, 16


def lighthouse():
    from torchft.coordination import LighthouseServer
    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1)
    print(server.address(), flush=True)
    sys.stdin.read()


def learn(at, replica, period):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torchft.local_sgd import DiLoCo
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    limit = datetime.timedelta(seconds=10)
    manager = Manager(pg=ProcessGroupGloo(timeout=limit), min_replica_size=1, use_async_quorum=False,
                      load_state_dict=lambda state: (model.load_state_dict(state["model"]), inner.load_state_dict(state["inner"])),
                      state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()}, replica_id=str(replica),
                      store_addr="127.0.0.1", store_port=store.port, rank=0, world_size=1, lighthouse_addr=at, timeout=limit,
                      quorum_timeout=2 * limit, connect_timeout=limit)
    data = [(torch.rand(BATCH, 784), torch.randint(10, (BATCH,))) for _ in range(BATCHES)]
    with DiLoCo(manager, [model], inner, outer, sync_every=period):
        step = 0
        while True:
            images, labels = data[step % BATCHES]
            inner.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            inner.step()
            step += 1
            print(f"{time.time():.4f} {manager.num_participants() if step >= period else 0}", flush=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser()
    parser.add_argument("--lighthouse", action="store_true")
    parser.add_argument("--at")
    parser.add_argument("--replica", type=int)
    parser.add_argument("--period", type=int)
    arguments = parser.parse_args()
    if arguments.lighthouse:
        lighthouse()
    else:
        learn(arguments.at, arguments.replica, arguments.period)
