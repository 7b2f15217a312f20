"""The interface of every model, whatever its architecture."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from schemas.config.model import Sampling

HeadLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(hidden [b, n, d], output map [v, d], targets [b, n]) -> loss sum, a float32 scalar."""


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


class LanguageModel(Protocol):
    """A decoder over token ids; PAD is padding, at the end of a row, and counts nothing."""

    training: bool

    def __call__(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        segments: Tensor | None = None,
        loss: HeadLoss = ...,
    ) -> Tensor:
        """Loss sum of targets [b, n] after tokens [b, n], of documents with the numbers segments
        [b, n]; without targets, logits [b, n, v]."""

    def logits(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        """Logits [b, n, v] of the next tokens."""

    def generate(
        self, prompts: Sequence[Sequence[int]], max_length: int, sampling: Sampling | None = None
    ) -> list[list[int]]:
        """Token ids that follow each prompt."""

    def new_cache(self) -> Any:
        """An empty cache for :meth:`step`, which has ``select(rows)``."""

    def step(self, tokens: Tensor, real: Tensor | None, cache: Any) -> Tensor:
        """Logits [b, v] after tokens [b, n], which follow the cached ones; ``real`` [b, m] is False
        at padding before them."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """The weights."""
