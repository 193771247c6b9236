"""A character-level GPT, trained by a recipe of a script's own: warm-up and cosine, decay for matrices only, gradients of
several batches in a step, clipping, checkpoints. Any number of processes, one step from the mean of their gradients:

    psd --set policy.type=sync
    torchrun --nproc-per-node 2 gpt.py shakespeare.txt --server tcp://localhost:5500 --checkpoint gpt.pt

With --resume it continues from the checkpoint, at the daemon that has trained it or at a new one, which then gets the
values and the state of the optimizer.
"""

import argparse
import math
import os
import pathlib
from typing import Any

import torch
from torch import Tensor, nn

import psd.torch


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.mix(self.before(hidden)).chunk(3, 2))
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(seen.transpose(1, 2).flatten(2))
        return hidden + self.think(self.between(hidden))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    def __init__(self, characters: int, length: int, width: int = 64, layers: int = 2, heads: int = 4):
        super().__init__()
        self.character, self.place = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.blocks, self.norm = nn.Sequential(*(Block(width, heads) for _ in range(layers))), nn.LayerNorm(width)
        self.out = nn.Linear(width, characters, bias=False)
        self.out.weight = self.character.weight
        nn.init.normal_(self.character.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.character(text) + self.place(torch.arange(text.shape[1]))
        return self.out(self.norm(self.blocks(hidden)))  # type: ignore[no-any-return]


def rate(step: int, steps: int, highest: float) -> float:
    """Rises for a tenth of the steps, then falls along a cosine to a tenth."""
    warm = max(1, steps // 10)
    if step < warm:
        return highest * (step + 1) / warm
    return highest * (0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--server", help="address of the daemon; default: the environment's PSD_SERVER")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--stop", type=int, help="end after this step of them")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=2, help="batches of each step")
    parser.add_argument("--length", type=int, default=64, help="characters of context")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--checkpoint", type=pathlib.Path, help="file to write every 50 steps and at the end")
    parser.add_argument("--resume", action="store_true", help="continue from --checkpoint")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    psd.torch.keep_freed_memory()
    torch.manual_seed(1)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")

    text = arguments.text.read_text(encoding="utf-8")
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    codes = torch.tensor([alphabet[character] for character in text])
    model = Gpt(len(alphabet), arguments.length)
    saved: dict[str, Any] = torch.load(arguments.checkpoint) if arguments.resume else {"step": 0}
    optimizer = psd.torch.Optimizer(torch.optim.AdamW([
        {"params": [parameter for parameter in model.parameters() if parameter.dim() >= 2], "weight_decay": 0.1},
        {"params": [parameter for parameter in model.parameters() if parameter.dim() < 2], "weight_decay": 0.0},
    ], betas=(0.9, 0.98)), arguments.server, samples=arguments.batch_size * arguments.accumulate)
    if arguments.resume and not any(optimizer.client.versions):  # a new daemon
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # under sync all trainers of a round need the same rate, so they start with the same step

    with optimizer:
        for step in range(saved["step"], arguments.stop or arguments.steps):
            for group in optimizer.param_groups:
                group["lr"] = rate(step, arguments.steps, arguments.lr)
            torch.manual_seed(1_000_000 * optimizer.rank + step)  # each trainer draws other pieces, the same ones after a restart
            optimizer.zero_grad()
            total = 0.0
            for begins in torch.randint(len(codes) - arguments.length, (arguments.accumulate, arguments.batch_size, 1)):
                pieces = codes[begins + torch.arange(arguments.length + 1)]
                loss = nn.functional.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten()) / arguments.accumulate
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            done = step + 1
            if done % 20 == 0 or done == arguments.steps:
                print(f"rank {optimizer.rank} step {done}: perplexity {math.exp(total):.2f}, lr {optimizer.param_groups[0]['lr']:.2g}", flush=True)
            if arguments.checkpoint and optimizer.rank == 0 and (done % 50 == 0 or done in (arguments.stop, arguments.steps)):
                torch.save({"optimizer": optimizer.state_dict(full=True), "model": model.state_dict(), "step": done}, arguments.checkpoint)


if __name__ == "__main__":
    main()
