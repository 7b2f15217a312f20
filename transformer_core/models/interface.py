"""The interfaces of encoder-decoders, their caches, and losses of hidden states."""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

HeadLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(hidden [b, n, d], output map [v, d], targets [b, n]) -> loss sum, a float32 scalar."""


class Cache(Protocol):
    """Keys and values that a decoder keeps between steps."""

    def reorder(self, rows: Tensor) -> None:
        """Lets row i continue the prefix of row ``rows[i]``, which has the same source."""

    def select(self, rows: Tensor) -> None:
        """Keeps (or repeats) ``rows``, both sources and prefixes."""


class Model(Protocol):
    """An encoder-decoder over token ids; PAD pads the ends of rows."""

    training: bool

    def __call__(self, source: Tensor, target_input: Tensor) -> Tensor:
        """Logits [b, t, v] for source [b, s] and target_input [b, t]."""

    def encode(self, source: Tensor) -> Tensor:
        """Memory [b, s, d] of source [b, s]."""

    def decode(
        self, memory: Tensor, source: Tensor, target_input: Tensor, cache: Any = None
    ) -> Tensor:
        """Logits [b, t, v]; with a cache, target_input holds only the tokens after its prefix."""

    def new_cache(self) -> Cache:
        """An empty cache for :meth:`decode`."""
