"""psd.torch.EmbeddingBag."""

from __future__ import annotations

import torch

from . import _arguments
from ._embedding import Embedding
from .errors import InvalidArgument

_MODES = ("sum", "mean", "max")


class EmbeddingBag(Embedding):
    """Like nn.EmbeddingBag, but the table is at the daemon, see psd.torch.Embedding: the sum, mean or maximum of the
    rows of each bag of ids."""

    def __init__(self, name: str, dim: int, *, mode: str = "mean", padding_idx: int | None = None, include_last_offset: bool = False,
                 initial: str = "uniform", scale: float = 0.01, seed: int = 1):
        """`mode`: "sum", "mean" or "max". `padding_idx`: an id that counts in no bag. `include_last_offset`: offsets have
        the number of ids as their last element. `initial`, `scale`, `seed`: see psd.Table."""
        super().__init__(name, dim, padding_idx=padding_idx, initial=initial, scale=scale, seed=seed)
        if mode not in _MODES:
            raise InvalidArgument(f"mode is {_arguments.shown(mode)}; expected one of {', '.join(_MODES)}")
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor | None = None, per_sample_weights: torch.Tensor | None = None) -> torch.Tensor:
        """One row for each bag: the rows of a two-dimensional tensor of ids, or parts of a one-dimensional one, which
        begin at `offsets`. `per_sample_weights`: a factor for each id, in mode "sum". An empty bag is zeros."""
        places, values = self._look_up(ids)
        offsets = None if offsets is None else offsets.to(places.device, torch.int64)
        return torch.nn.functional.embedding_bag(places, values, offsets, mode=self.mode, per_sample_weights=per_sample_weights,
                                                 include_last_offset=self.include_last_offset,
                                                 padding_idx=None if self.padding_idx is None else len(values) - 1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"


EmbeddingBag.__module__ = "psd.torch"  # its public name, for imports and pickles
torch.serialization.add_safe_globals([EmbeddingBag])
