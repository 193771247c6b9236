"""A small character-level transformer, trained on a text:

    psd --set 'optimizer={"type":"adam","lr":0.003}' --set policy.type=sync
    torchrun --nproc-per-node 2 transformer.py shakespeare.txt --server tcp://localhost:5500
"""

import argparse
import pathlib

import torch
from torch import Tensor, nn

import psd.torch


class Transformer(nn.Module):
    def __init__(self, characters: int, length: int, width: int, layers: int):
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)
        self.out.weight = self.characters.weight  # tied: the daemon stores it once
        nn.init.normal_(self.characters.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        length = text.shape[1]
        later = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.characters(text) + self.places(torch.arange(length))
        logits: Tensor = self.out(self.norm(self.layers(hidden, mask=later, is_causal=True)))
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--server", help="address of the daemon; default: the environment's PSD_SERVER")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=64, help="characters of context")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    psd.torch.keep_freed_memory()
    torch.manual_seed(1)

    text = arguments.text.read_text(encoding="utf-8")
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    codes = torch.tensor([alphabet[character] for character in text])
    model = Transformer(len(alphabet), arguments.length, arguments.width, arguments.layers)
    with psd.torch.Optimizer(model, arguments.server) as optimizer:
        torch.manual_seed(1000 + optimizer.rank)  # each trainer draws different pieces
        for step in range(1, arguments.steps + 1):
            begins = torch.randint(len(codes) - arguments.length, (arguments.batch_size, 1))
            pieces = codes[begins + torch.arange(arguments.length + 1)]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step(samples=arguments.batch_size)
            if step % 20 == 0 or step == 1:
                print(f"rank {optimizer.rank} step {step}: perplexity {loss.exp().item():.2f}", flush=True)


if __name__ == "__main__":
    main()
