"""The interfaces that all models share."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from schemas.config.model import Sampling

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


class LanguageModel(Protocol):
    """A decoder over token ids; PAD pads the ends of rows and does not count."""

    training: bool

    def __call__(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        segments: Tensor | None = None,
        loss: HeadLoss = ...,
    ) -> Tensor:
        """Loss sum of targets [b, n] after tokens [b, n]; without targets, logits [b, n, v].
        segments [b, n] number the documents."""

    def logits(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        """Logits [b, n, v] of the next tokens."""

    def generate(
        self, prompts: Sequence[Sequence[int]], max_length: int, sampling: Sampling | None = None
    ) -> list[list[int]]:
        """Generates the token ids that follow each prompt."""

    def new_cache(self) -> Any:
        """An empty cache for :meth:`step`, with a method ``select(rows)``."""

    def step(self, tokens: Tensor, real: Tensor | None, cache: Any) -> Tensor:
        """Logits [b, v] after tokens [b, n], which follow the cached ones; ``real`` [b, m] is False
        at padding before them."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """The weights."""
