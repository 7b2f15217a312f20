"""Floating-point operations of a model, from the lengths of its batches.

Model FLOPs as in PaLM (arXiv 2204.02311, appendix B), also for an encoder-decoder: the matrix
products of the forward pass, a multiplication and an addition each, and twice as many in the
backward pass, for the gradients of both factors. Attention counts all keys of a row, also those
that a causal mask hides. What is computed a second time (checkpointing, chunked loss),
element-wise work, normalizations, look-ups and the optimizer do not count.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.config.model import DecoderOnly, HuggingFaceCausal, ImportedModel
from schemas.config.run_spec import AnyTrained
from transformer_core.data.arrays import group_sums
from transformer_core.data.batching.feeding import WindowRows
from transformer_core.study.reservations import layer_weights


@dataclass(frozen=True)
class Lengths:
    """Sums over the pairs (or padded rows) of each of n batches; all [n]."""

    sources: NDArray[np.int64]  # source tokens
    targets: NDArray[np.int64]  # target tokens
    source_squares: NDArray[np.int64]  # source tokens of a pair times themselves
    target_squares: NDArray[np.int64]  # target tokens of a pair times themselves
    products: NDArray[np.int64]  # source tokens times target tokens of a pair


def non_padding(rows: WindowRows) -> Lengths:
    """The lengths of the pairs in every global batch of a window."""
    s, t, starts = rows.sources, rows.targets, rows.batch_starts
    return Lengths(*(group_sums(values, starts) for values in (s, t, s * s, t * t, s * t)))


def padded(rows: WindowRows) -> Lengths:
    """The same of the rows that are computed: each as long as the longest of its part."""
    b, s, t = rows.shapes.T
    parts = len(rows.shapes) // (len(rows.batch_starts) - 1)
    return Lengths(
        *((b * values).reshape(-1, parts).sum(axis=1) for values in (s, t, s * s, t * t, s * t))
    )


def training_flops(model: AnyTrained, vocabulary: int, lengths: Lengths) -> NDArray[np.float64]:
    """[n] FLOPs of forward and backward for each batch.

    Raises ValueError for a model whose layers are not known: a user's own, or a language model of
    another library.
    """
    return 3.0 * forward_flops(model, vocabulary, lengths)


def forward_flops(model: AnyTrained, vocabulary: int, lengths: Lengths) -> NDArray[np.float64]:
    """[n] FLOPs of the forward pass for each batch; see :func:`training_flops`."""
    if isinstance(model, ImportedModel):
        raise ValueError(f"the layers of {model.factory} are not known")
    if isinstance(model, HuggingFaceCausal):
        raise ValueError(f"the layers of {model.architecture} are not known")
    if isinstance(model, DecoderOnly):
        each = layer_weights(model) * lengths.targets + 2 * model.d_model * lengths.target_squares
        products = model.layers * each + model.d_model * vocabulary * lengths.targets
        return products.astype(np.float64) * 2.0
    d, inner = model.d_model, model.d_ff
    # Multiplications: weights per token, then scores and weighted values per pair of tokens.
    encoder = (4 * d * d + 2 * d * inner) * lengths.sources + 2 * d * lengths.source_squares
    decoder = (
        (6 * d * d + 2 * d * inner) * lengths.targets
        + 2 * d * d * lengths.sources  # keys and values of the memory
        + 2 * d * (lengths.target_squares + lengths.products)
    )
    output = d * vocabulary * lengths.targets
    total = model.encoder_layers * encoder + model.decoder_layers * decoder + output
    return 2.0 * total
