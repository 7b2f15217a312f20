"""Keys and values kept between decoding steps, so that each step computes only its own token."""

import torch
from torch import Tensor

KeyValue = tuple[Tensor, Tensor]
"""Keys and values, each [b, h, n, k]."""


class LayerCache:
    """Keys and values of one decoder layer."""

    def __init__(self) -> None:
        self.prefix: KeyValue | None = None
        self.memory: KeyValue | None = None

    def extend(self, k: Tensor, v: Tensor) -> KeyValue:
        """Append keys and values of new target tokens; all of them so far."""
        if self.prefix is not None:
            k = torch.cat([self.prefix[0], k], dim=2)
            v = torch.cat([self.prefix[1], v], dim=2)
        self.prefix = (k, v)
        return self.prefix


class DecoderCache:
    """Keys and values of all decoder layers: a :class:`~transformer_core.models.interface.Cache`."""

    def __init__(self, layers: int) -> None:
        self.layers = [LayerCache() for _ in range(layers)]

    @property
    def length(self) -> int:
        """Target tokens cached so far."""
        prefix = self.layers[0].prefix
        return 0 if prefix is None else prefix[0].size(2)

    def reorder(self, rows: Tensor) -> None:
        """Let row i continue the prefix of row ``rows[i]``, which has the same source."""
        for layer in self.layers:
            layer.prefix = _take(layer.prefix, rows)

    def select(self, rows: Tensor) -> None:
        """Keep (or repeat) ``rows``, sources and prefixes alike."""
        for layer in self.layers:
            layer.prefix = _take(layer.prefix, rows)
            layer.memory = _take(layer.memory, rows)


def _take(pair: KeyValue | None, rows: Tensor) -> KeyValue | None:
    return None if pair is None else (pair[0].index_select(0, rows), pair[1].index_select(0, rows))
