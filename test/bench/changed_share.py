"""The share of bf16 elements that differ between published versions, by the learning rate, and the size of psd's patches of them.

changed_share.py --psd PSD --package FOLDER [--text FILE] [--picture FILE]

Prints a table in Markdown; --picture needs matplotlib. A GPT with the shape of psd-trainer's model `gpt` learns the bytes of a text, by default
those of the pages in docs/: 500 steps of AdamW at 3e-4, and from there, for each optimizer and rate, 50 steps. A version has the float32
weights rounded to bf16. The figures are of the last 40 steps: the mean over the pairs of versions that are 1 step or 10 steps apart. One
thread, three minutes. The same text, PyTorch and kind of processor reproduce the shares."""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional

REPO = pathlib.Path(__file__).resolve().parents[2]
BATCH, LENGTH, WIDTH, LAYERS, HEADS, VOCABULARY = 8, 128, 128, 4, 4, 256
SETTLING, SETTLING_RATE, STEPS, SKIPPED = 500, 3e-4, 50, 10
DISTANCES = (1, 10)  # steps from version to version
PATCHED_SHARE = 7 / 16  # a patch with one bit per element for the positions, and the 16 of each new value, is half of the version
RATES = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {}, RATES),
    "SGD, momentum 0.9": (torch.optim.SGD, {"momentum": 0.9}, (*RATES, 1e-2, 1e-1)),
    "SGD": (torch.optim.SGD, {}, (*RATES, 1e-2, 1e-1)),
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.hidden_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.hidden, self.output = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        with torch.no_grad():
            for last in (self.joined, self.output):
                last.weight /= (2 * LAYERS) ** 0.5

    def forward(self, x):
        parts = self.attention(self.attention_norm(x)).unflatten(2, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        x = x + self.joined(functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.output(functional.gelu(self.hidden(self.hidden_norm(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)

    def forward(self, text):
        return functional.linear(self.norm(self.blocks(self.tokens(text) + self.positions.weight)), self.tokens.weight)


def text_of(path):
    """The bytes of a file, or of all pages of the documentation."""
    files = [pathlib.Path(path)] if path else sorted((REPO / "docs").rglob("*.md"))
    return torch.frombuffer(bytearray(b"\n".join(file.read_bytes() for file in files)), dtype=torch.uint8)


def train(model, optimizer, text, steps, random):
    """Yields the loss after each step."""
    for _ in range(steps):
        starts = torch.randint(0, len(text) - LENGTH, (BATCH, 1), generator=random)
        sample = text[starts + torch.arange(LENGTH + 1)].long()
        loss = functional.cross_entropy(model(sample[:, :-1]).flatten(0, 1), sample[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def version_of(model):
    """All weights, as one tensor: the descriptions of many small ones would take more of a patch than those of a large model."""
    return torch.cat([weight.detach().flatten() for weight in model.parameters()]).bfloat16()


def settled(text):
    """The states of the model and of AdamW when training has settled, and the loss."""
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=SETTLING_RATE)
    losses = list(train(model, optimizer, text, SETTLING, torch.Generator().manual_seed(1)))
    return model.state_dict(), optimizer.state_dict(), statistics.mean(losses[-10:])


def versions_at(rate, kind, options, state, text):
    """The versions after the last steps at that rate, each one step after the one before."""
    weights, moments, _ = state
    model = Gpt()
    model.load_state_dict(weights)
    optimizer = kind(model.parameters(), lr=rate, **options)
    if kind is torch.optim.AdamW:
        optimizer.load_state_dict(moments)
        optimizer.param_groups[0]["lr"] = rate
    training = train(model, optimizer, text, STEPS, torch.Generator().manual_seed(2))
    return [version_of(model) for _ in training][SKIPPED - 1:]


class Store:
    """A daemon that stores versions, a program that publishes them and one that follows."""

    def __init__(self, stack, psd_program):
        import psd
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psd-changed-", dir="/dev/shm")))
        address = f"unix://{folder / 'psd.sock'}"
        config = {"listen": [address], "insecure": True, "publish": {"from": "publishers", "path": str(folder / "versions"), "keep": 2}}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        daemon = subprocess.Popen([psd_program, "--config", folder / "config.json"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(lambda: (daemon.kill(), daemon.wait()))
        self.publisher = stack.enter_context(psd.Publisher(address, connect_timeout=30))
        self.follower = stack.enter_context(psd.Follower(address, connect_timeout=30))
        self.step = 0

    def received(self, version):
        """The bytes that a follower of the version before reads."""
        self.step += 1
        before = self.follower.received_bytes
        self.follower.fetch(self.publisher.publish(self.step, {"w": version}, timeout=60).number, timeout=60)
        return self.follower.received_bytes - before


def measure(store, versions):
    """The share of elements that change from version to version, and the size of the patches as a share of the version's; None: one of them
    was not made."""
    share = statistics.mean((after.view(torch.int16) != before.view(torch.int16)).float().mean().item()
                            for before, after in zip(versions, versions[1:]))
    sizes = [store.received(version) / version.nbytes for version in versions][1:]
    return share, statistics.mean(sizes) if max(sizes) < 1 else None


def percent(share):
    if share is None:
        return "whole"
    return f"{100 * share:.1f} %" if share >= 0.01 else f"{100 * share:.2f} %" if share >= 1e-4 else "< 0.01 %"


def table(results):
    """Markdown: a row for each rate; the share that changes, and the size of the patch."""
    columns = [(name, distance) for name in OPTIMIZERS for distance in DISTANCES]
    rows = [["learning rate", *(steps_of(*column) for column in columns)]]
    for rate in sorted({rate for _, rate in results}):
        cells = [results.get((name, rate), {}).get(distance) for name, distance in columns]
        rows.append([f"{rate:.0e}".replace("e-0", "e-"), *(" / ".join(map(percent, cell)) if cell else "" for cell in cells)])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


def picture(results):
    sys.path.insert(0, str(REPO / "scripts"))
    import line_plot
    curves = [(steps_of(name, distance), [(rate, 100 * figures[distance][0]) for (its, rate), figures in results.items() if its == name])
              for name in OPTIMIZERS for distance in DISTANCES]
    ends = [pick(rate for _, rate in results) for pick in (min, max)]
    curves.append(("above: read whole", [(rate, 100 * PATCHED_SHARE) for rate in ends]))
    return line_plot.plot("Elements that change from one bf16 version to the next", "learning rate", "changed elements in %", curves, (0.01, 100),
                          "log", "log")


def steps_of(name, distance):
    return f"{name}: {distance} step" + ("s" if distance > 1 else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--psd", required=True)
    parser.add_argument("--package", required=True, help="the folder of the Python package")
    parser.add_argument("--text", help="a file")
    parser.add_argument("--picture", help="the SVG to write")
    options = parser.parse_args()
    sys.path.insert(0, options.package)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text, results = text_of(options.text), {}
    state = settled(text)
    print(f"{version_of(Gpt()).numel():,} parameters, {len(text):,} bytes of text, loss {state[2]:.2f} after {SETTLING} steps", file=sys.stderr)
    with contextlib.ExitStack() as stack:
        store = Store(stack, options.psd)
        for name, (kind, more, rates) in OPTIMIZERS.items():
            for rate in rates:
                versions = versions_at(rate, kind, more, state, text)
                results[name, rate] = {distance: measure(store, versions[::distance]) for distance in DISTANCES}
                print(name, rate, results[name, rate], file=sys.stderr)
    print("\n".join(table(results)))
    if options.picture:
        pathlib.Path(options.picture).write_text(picture(results), encoding="utf-8")


if __name__ == "__main__":
    main()
