"""DiLoCo, Streaming DiLoCo and Delayed Nesterov with PyTorch alone, and the same learners with psd.torch.DiLoCo and a daemon: the
same model, initial values, samples and inner optimizer. Prints the held-out loss of the shared parameters as JSON.

    PYTHONPATH=build/release/python python3 test/bench/torch_diloco.py rounds unix:///tmp/psd.sock --text FILE --period 20

With --rules, or without a server, it prints the daemon's policy and optimizer.
"""

import argparse
import json
import pathlib
import random
import sys
import threading

import torch
from torch import nn

LEARNERS, BATCH, CONTEXT = 4, 32, 16
ROUNDS = 10
OUTER = {"type": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
ARRIVALS = {"type": "delayed_nesterov", "lr": 0.7, "momentum": 0.9, "delay": LEARNERS}
FRAGMENTS, BLEND = 2, 0.5
KINDS = ("rounds", "fragments", "arrivals")
HELD_OUT_MOST = 4096  # samples
WAIT_S = 600.0


def delay_of(period):
    """Steps that continue while a fragment is exchanged."""
    return period // 10


def policy_of(kind, period):
    """The daemon's policy; its optimizer is optimizer_of()."""
    if kind == "arrivals":
        return {"type": "async_diloco", "period": period}
    streaming = {"fragments": FRAGMENTS, "delay": delay_of(period), "blend": BLEND} if kind == "fragments" else {}
    return {"type": "diloco", "period": period, "start_trainers": LEARNERS, **streaming}


def optimizer_of(kind):
    return ARRIVALS if kind == "arrivals" else OUTER


def written_text(characters=60_000, seed=1):
    """A text whose characters are predictable from the previous ones: words of a small language, some of which tend to
    follow others."""
    chance = random.Random(seed)
    words = ["".join(chance.choice("etaoinshrdlu") for _ in range(chance.randint(2, 7))) for _ in range(60)]
    after = {word: chance.sample(words, 4) for word in words}
    word, text = words[0], []
    while len(text) < characters:
        word = chance.choice(after[word])
        text.extend(word + " ")
    return "".join(text[:characters])


class Task:
    """Predicts a character of a text from the previous ones. The last tenth is held out."""

    def __init__(self, text, seed):
        letters = sorted(set(text))
        place = {letter: number for number, letter in enumerate(letters)}
        numbers = torch.tensor([place[letter] for letter in text])
        cut = len(numbers) * 9 // 10
        self.known, held_out = numbers[:cut], numbers[cut:]
        self.letters, self.seed = len(letters), seed
        self.held_out = self.samples(held_out, torch.arange(min(HELD_OUT_MOST, len(held_out) - CONTEXT)))

    def samples(self, text, places):
        return text[places[:, None] + torch.arange(CONTEXT)], text[places + CONTEXT]

    def make_model(self):
        torch.manual_seed(self.seed)
        return nn.Sequential(nn.Embedding(self.letters, 12), nn.Flatten(), nn.Linear(12 * CONTEXT, 64), nn.Tanh(),
                             nn.Linear(64, self.letters))

    def batches(self, rank):
        """The endless batches of one learner."""
        generator = torch.Generator().manual_seed(1000 * self.seed + rank)
        while True:
            yield self.samples(self.known, torch.randint(len(self.known) - CONTEXT, (BATCH,), generator=generator))

    @torch.no_grad()
    def loss(self, values):
        """The loss of the held-out samples, with parameters by their names."""
        model = self.make_model()
        model.load_state_dict(values)
        return nn.functional.cross_entropy(model(self.held_out[0]), self.held_out[1]).item()


def make_inner(model):
    return torch.optim.AdamW(model.parameters(), 0.003)


def take_step(model, inner, batch):
    inner.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    inner.step()


class Learner:
    """One learner of the reference: a model with an optimizer and samples of its own."""

    def __init__(self, task, rank):
        self.model = task.make_model()
        self.values = dict(self.model.named_parameters())
        self.inner = make_inner(self.model)
        self.batches = task.batches(rank)

    def step(self):
        take_step(self.model, self.inner, next(self.batches))


class Nesterov:
    """torch.optim.SGD over some of the shared parameters, whose gradients are means of differences."""

    def __init__(self, theta, names):
        self.values = {name: nn.Parameter(theta[name]) for name in names}
        self.steps = torch.optim.SGD(self.values.values(), OUTER["lr"], OUTER["momentum"], nesterov=OUTER["nesterov"])

    def step(self, theta, learners):
        for name, value in self.values.items():
            value.grad = torch.stack([theta[name] - learner.values[name] for learner in learners]).mean(0)
        self.steps.step()
        for name, value in self.values.items():
            theta[name] = value.detach().clone()


def by_torch_in_rounds(task, period, fragments, delay, blend, rounds=ROUNDS):
    """The shared parameters after `rounds` rounds of synchronous learners. `fragments`: the names in each; one of all
    without fragments."""
    learners = [Learner(task, rank) for rank in range(LEARNERS)]
    theta = {name: value.detach().clone() for name, value in learners[0].values.items()}
    outer = [Nesterov(theta, names) for names in fragments]
    sent = [None] * len(fragments)  # after which step
    ends = {(slot + 1) * period // len(fragments): slot for slot in range(len(fragments))}

    def apply_result(fragment):
        for learner in learners:
            for name in fragments[fragment]:
                learner.values[name].copy_(blend * learner.values[name] + (1 - blend) * theta[name])
        sent[fragment] = None

    for number in range(1, rounds * period + 1):
        for learner in learners:
            learner.step()
        with torch.no_grad():
            for fragment, when in enumerate(sent):
                if when is not None and number - when == delay:
                    apply_result(fragment)
            slot = ends.get((number - 1) % period + 1)
            if slot is not None:
                outer[slot].step(theta, learners)
                sent[slot] = number
                if delay == 0:
                    apply_result(slot)
    with torch.no_grad():  # the rest: steps since the last push of a fragment
        for fragment, when in enumerate(sent):
            if when is not None:
                apply_result(fragment)
        for fragment in range(len(fragments) - 1):
            outer[fragment].step(theta, learners)
    return theta


def by_torch_in_arrivals(task, period, rounds=ROUNDS):
    """The shared parameters with learners that take turns; Delayed Nesterov (Liu et al. 2024)."""
    learners = [Learner(task, rank) for rank in range(LEARNERS)]
    theta = {name: value.detach().clone() for name, value in learners[0].values.items()}
    starts = [theta] * LEARNERS
    momentum, sums = ({name: torch.zeros_like(value) for name, value in theta.items()} for _ in range(2))
    rate, share, delay = ARRIVALS["lr"], ARRIVALS["momentum"], ARRIVALS["delay"]
    for turn in range(rounds * LEARNERS):
        rank = turn % LEARNERS
        learner = learners[rank]
        for _ in range(period):
            learner.step()
        with torch.no_grad():
            theta = dict(theta)
            for name, value in learner.values.items():
                difference = starts[rank][name] - value
                sums[name] = sums[name] + difference
                theta[name] = theta[name] - rate * difference / delay
                if (turn + 1) % delay == 0:
                    momentum[name] = share * momentum[name] + sums[name] / delay
                    theta[name] = theta[name] - rate * share * momentum[name]
                    sums[name] = torch.zeros_like(value)
                value.copy_(theta[name])
        starts[rank] = theta
    return theta


def shared_values(server, task):
    """The daemon's parameters by their names."""
    import psd

    with psd.Client(server) as client:
        model = psd.Model.of("Sequential", dict(task.make_model().named_parameters()))
        client.observe(model)
        values = model.zeros()
        client.pull(values)
    return {name: torch.from_numpy(view.copy()) for name, view in model.views(values).items()}


def by_psd_in_rounds(server, task, period, rounds=ROUNDS):
    """The same with psd.torch.DiLoCo: learners in threads, each with a connection of its own."""
    import psd.torch

    models = [task.make_model() for _ in range(LEARNERS)]  # created here, as threads would draw from one generator at the same time
    failures = []

    def run(rank):
        try:
            model = models[rank]
            inner, batches = make_inner(model), task.batches(rank)
            with psd.torch.DiLoCo(model, inner, server, rank=rank, world_size=LEARNERS, samples=BATCH):
                for _ in range(rounds * period):
                    take_step(model, inner, next(batches))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(LEARNERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    if failures or any(thread.is_alive() for thread in threads):
        raise RuntimeError(f"learners failed: {failures or 'they did not end'}")
    return shared_values(server, task)


def by_psd_in_arrivals(server, task, period, rounds=ROUNDS):
    """With psd.torch.DiLoCo, whose learners take turns, so that they arrive in the order of the reference."""
    import psd.torch

    models = [task.make_model() for _ in range(LEARNERS)]
    inners = [make_inner(model) for model in models]
    batches = [task.batches(rank) for rank in range(LEARNERS)]
    learners = [psd.torch.DiLoCo(models[rank], inners[rank], server, rank=rank, world_size=LEARNERS, samples=BATCH)
                for rank in range(LEARNERS)]
    try:
        for turn in range(rounds * LEARNERS):
            rank = turn % LEARNERS
            for _ in range(period):
                take_step(models[rank], inners[rank], next(batches[rank]))
        for learner in learners:
            learner.close()
    finally:
        for learner in learners:
            learner.client.close()
    return shared_values(server, task)


def fragments_of(task, count):
    """The names in each fragment: tensors outside of repeated blocks are placed from the largest, into the smallest
    fragment."""
    names, sizes = [[] for _ in range(count)], [0] * count
    for name, value in sorted(task.make_model().named_parameters(), key=lambda each: -each[1].numel()):
        least = sizes.index(min(sizes))
        names[least].append(name)
        sizes[least] += value.numel()
    return names


def losses(kind, server, task, period, rounds=ROUNDS):
    """Held-out losses: of the reference, of psd, of untrained parameters."""
    if kind == "arrivals":
        reference, found = by_torch_in_arrivals(task, period, rounds), by_psd_in_arrivals(server, task, period, rounds)
    else:
        streams = kind == "fragments"
        reference = by_torch_in_rounds(task, period, fragments_of(task, FRAGMENTS if streams else 1), delay_of(period) if streams else 0,
                                       BLEND if streams else 0, rounds)
        found = by_psd_in_rounds(server, task, period, rounds)
    return {"torch": task.loss(reference), "psd": task.loss(found), "untrained": task.loss(task.make_model().state_dict())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("server", nargs="?")
    parser.add_argument("--rules", action="store_true", help="print what the daemon's policy and optimizer must be, and end")
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--period", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.rules or not arguments.server:
        print(json.dumps({"policy": policy_of(arguments.kind, arguments.period), "optimizer": optimizer_of(arguments.kind)}))
        return 0
    torch.set_num_threads(1)
    text = arguments.text.read_text(encoding="utf-8") if arguments.text else written_text()
    print(json.dumps(losses(arguments.kind, arguments.server, Task(text, arguments.seed), arguments.period, arguments.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
