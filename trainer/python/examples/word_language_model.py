"""A language model of words: an LSTM with plain SGD, whose rate falls to a quarter whenever the validation text is not
predicted better than before. The best values are kept for the test.

    psd --set policy.type=sync --set policy.start_trainers=2
    torchrun --nproc-per-node 2 word_language_model.py book.txt --server tcp://localhost:5500

Under sync all trainers of a round need the same rate. Here each computes the loss of the same text with the values of
the same round, and so comes to the same decision.
"""

import argparse
import collections
import copy
import math
import os
import pathlib
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import psd.torch


class Words(nn.Module):
    def __init__(self, words: int, width: int):
        super().__init__()
        self.word, self.drop = nn.Embedding(words, width), nn.Dropout(0.2)
        self.lstm, self.out = nn.LSTM(width, width, 2, dropout=0.2), nn.Linear(width, words)
        self.out.weight = self.word.weight
        nn.init.uniform_(self.word.weight, -0.1, 0.1)

    def losses(self, text: Tensor, length: int) -> Iterator[Tensor]:
        """The loss of each piece of a text in columns. The state continues from piece to piece, the gradient does not."""
        state = None
        for begin in range(0, len(text) - 1, length):
            inputs, following = text[begin:-1][:length], text[begin + 1:][:length]
            seen, state = self.lstm(self.drop(self.word(inputs)), state)
            state = tuple(part.detach() for part in state)
            yield nn.functional.cross_entropy(self.out(self.drop(seen)).flatten(0, 1), following.flatten())


def in_columns(words: Tensor, columns: int) -> Tensor:
    """A text cut into texts of the same length, each in a column."""
    return words[:len(words) // columns * columns].view(columns, -1).t().contiguous()


@torch.no_grad()
def mean_loss(model: Words, text: Tensor, length: int) -> float:
    model.eval()
    found = [loss.item() for loss in model.losses(text, length)]
    model.train()
    return sum(found) / len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--server", help="address of the daemon; default: the environment's PSD_SERVER")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16, help="columns of all trainers together")
    parser.add_argument("--length", type=int, default=20, help="words through which gradients go back")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--words", type=int, default=2000, help="size of the vocabulary; rarer words are one")
    parser.add_argument("--lr", type=float, default=10.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    psd.torch.keep_freed_memory()
    torch.manual_seed(1)

    text = re.findall(r"\w+|[^\w\s]", arguments.text.read_text(encoding="utf-8").lower())
    common = {word: number for number, (word, _) in enumerate(collections.Counter(text).most_common(arguments.words - 1), start=1)}
    codes = torch.tensor([common.get(word, 0) for word in text])
    tenth = len(codes) // 10
    rank, trainers = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    mine = in_columns(codes[2 * tenth:], arguments.batch_size)[:, rank::trainers]
    validation, test = (in_columns(part, 10) for part in (codes[:tenth], codes[tenth:2 * tenth]))

    model = Words(len(common) + 1, arguments.width)
    best, lowest = copy.deepcopy(model.state_dict()), math.inf
    with psd.torch.Optimizer(torch.optim.SGD(model.parameters(), lr=arguments.lr), arguments.server, samples=mine.shape[1]) as optimizer:
        for epoch in range(1, arguments.epochs + 1):
            for loss in model.losses(mine, arguments.length):
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.25)
                optimizer.step()
            reached = mean_loss(model, validation, arguments.length)
            print(f"rank {rank} epoch {epoch}: lr {optimizer.param_groups[0]['lr']:g}, validation perplexity {math.exp(reached):.1f}", flush=True)
            if reached < lowest:
                best, lowest = copy.deepcopy(model.state_dict()), reached
            else:
                for group in optimizer.param_groups:
                    group["lr"] /= 4
    model.load_state_dict(best)
    print(f"rank {rank}: test perplexity {math.exp(mean_loss(model, test, arguments.length)):.1f}")


if __name__ == "__main__":
    main()
