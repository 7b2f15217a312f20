"""Decoding for models that keep no keys and values: the whole prefix is computed at every step."""

from torch import Tensor, cat


class PrefixCache:
    """The target tokens so far: a :class:`~transformer_core.models.interface.Cache`.

    A step costs as much as the whole prefix, so decoding t tokens takes the time of t^2.
    """

    def __init__(self) -> None:
        self.tokens: Tensor | None = None

    def extend(self, tokens: Tensor) -> Tensor:
        """Append tokens [b, n]; all of them so far, [b, t]."""
        self.tokens = tokens if self.tokens is None else cat([self.tokens, tokens], dim=1)
        return self.tokens

    def reorder(self, rows: Tensor) -> None:
        """Let row i continue the prefix of row ``rows[i]``, which has the same source."""
        self.select(rows)

    def select(self, rows: Tensor) -> None:
        """Keep (or repeat) ``rows``."""
        if self.tokens is not None:
            self.tokens = self.tokens.index_select(0, rows)
