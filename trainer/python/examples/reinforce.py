"""Reinforcement learning: this process trains a small GPT by policy gradients; others generate its samples, with the versions
that the daemon publishes:

    psd --set policy.type=locked --set publish.every_updates=1
    python reinforce.py --server tcp://localhost:5500

A token is rewarded if it is the successor of the one before. Each batch has the number of the version that has made it. One
that is more than --max-staleness versions older than the newest is dropped. A generator that dies delays no step.
"""

import argparse
import multiprocessing
from typing import Any

import torch
from gpt import Gpt
from torch import Tensor

import psd.torch

TOKENS, LENGTH, BATCH = 12, 12, 32
DISCOUNT, ENTROPY = 0.5, 0.1
PATIENCE = 180  # seconds that one side waits for the other


def chances_of(model: Gpt, texts: Tensor) -> Tensor:
    """Logarithms of the chance of each token after the text before it."""
    return model(texts).log_softmax(2)  # type: ignore[no-any-return]


@torch.no_grad()
def generated(model: Gpt) -> tuple[Tensor, Tensor]:
    """Samples of the model, each of which begins with a random token, and the chances of their tokens."""
    texts, chosen = torch.randint(TOKENS, (BATCH, 1)), []
    for _ in range(LENGTH):
        chances = chances_of(model, texts)[:, -1]
        texts = torch.cat([texts, torch.multinomial(chances.exp(), 1)], 1)
        chosen.append(chances.gather(1, texts[:, -1:]))
    return texts, torch.cat(chosen, 1)


def generate(server: str | None, seed: int, batches: Any) -> None:
    """A process that generates with the newest version, until none takes its batches."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = Gpt(TOKENS, LENGTH + 1)
    number = 0
    with psd.Follower(server) as follower:
        while True:
            if number == 0 or number < follower.versions()[-1].number:
                number = follower.wait(timeout=PATIENCE)
                model.load_state_dict(follower.torch_tensors(), strict=False)
            batches.put((number, *(tensor.numpy() for tensor in generated(model))), timeout=PATIENCE)


def loss_of(model: Gpt, texts: Tensor, chosen_then: Tensor) -> tuple[Tensor, float]:
    """REINFORCE: the chance of each token is weighed by the discounted rewards from it on, less their mean over the batch at its
    place, and by how much less likely it is now than for the version that has chosen it. A bonus for entropy keeps all
    tokens possible. Also returns the mean reward."""
    before, tokens = texts[:, :-1], texts[:, 1:]
    rewards = (tokens == (before + 1) % TOKENS).float()
    following = rewards.clone()
    for place in reversed(range(LENGTH - 1)):
        following[:, place] += DISCOUNT * following[:, place + 1]
    advantages = (following - following.mean(0)) / (following.std() + 1e-6)
    chances = chances_of(model, before)
    chosen = chances.gather(2, tokens.unsqueeze(2)).squeeze(2)
    weights = (chosen.detach() - chosen_then).exp().clamp(max=1)
    entropy = -(chances.exp() * chances).sum(2)
    return -(weights * advantages * chosen + ENTROPY * entropy).mean(), rewards.mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="address of the daemon; default: the environment's PSD_SERVER")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--generators", type=int, default=2)
    parser.add_argument("--max-staleness", type=int, default=4, help="versions that a batch may be older than the newest")
    parser.add_argument("--lr", type=float, default=2e-3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Gpt(TOKENS, LENGTH + 1)
    optimizer = psd.torch.Optimizer(torch.optim.Adam(model.parameters(), lr=arguments.lr), arguments.server, samples=BATCH)
    processes = multiprocessing.get_context("spawn")
    batches: Any = processes.Queue(arguments.generators)
    for seed in range(arguments.generators):
        processes.Process(target=generate, args=(arguments.server, seed, batches), daemon=True).start()

    oldest = dropped = 0
    rewards: list[float] = []
    with optimizer, psd.Follower(arguments.server) as published:
        for step in range(1, arguments.steps + 1):
            batch = generated(model) if step == 1 else None  # the first version follows the first step
            while batch is None:
                number, *arrays = batches.get(timeout=PATIENCE)
                staleness = published.versions()[-1].number - number
                if staleness > arguments.max_staleness:
                    dropped += 1
                    continue
                oldest = max(oldest, staleness)
                batch = torch.as_tensor(arrays[0]), torch.as_tensor(arrays[1])
            optimizer.zero_grad()
            loss, reward = loss_of(model, *batch)
            loss.backward()
            optimizer.step()
            rewards.append(reward)
            if step % 20 == 0 or step == arguments.steps:
                mean = sum(rewards) / len(rewards)
                print(f"step {step}: reward {mean:.2f}, batches at most {oldest} versions old, {dropped} dropped", flush=True)
                rewards.clear()


if __name__ == "__main__":
    main()
