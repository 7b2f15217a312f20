"""What every model offers, whatever it is made of."""

from typing import Any, Protocol

from torch import Tensor


class Cache(Protocol):
    """Keys and values that a decoder keeps between steps."""

    def reorder(self, rows: Tensor) -> None:
        """Let row i continue the prefix of row ``rows[i]``, which has the same source."""

    def select(self, rows: Tensor) -> None:
        """Keep (or repeat) ``rows``, sources and prefixes alike."""


class Model(Protocol):
    """An encoder-decoder over token ids; PAD is padding, at the end of a row."""

    training: bool

    def __call__(self, source: Tensor, target_input: Tensor) -> Tensor:
        """Logits [b, t, v] for source [b, s] and target_input [b, t]."""

    def encode(self, source: Tensor) -> Tensor:
        """Memory [b, s, d] of source [b, s]."""

    def decode(
        self, memory: Tensor, source: Tensor, target_input: Tensor, cache: Any = None
    ) -> Tensor:
        """Logits [b, t, v]; with a cache, target_input holds only what follows its prefix."""

    def new_cache(self) -> Cache:
        """An empty cache for :meth:`decode`."""
