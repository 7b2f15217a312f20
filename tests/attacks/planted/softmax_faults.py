"""Mask, softmax and dropout of attention in one pass over the scores."""

from typing import Any

import torch
from torch import Tensor

from schemas.base import merge
from tests.attacks.planted.fault import BF16, WIDE, Change, Fault
from tests.attacks.planted.planting import Patch, swap, swap_item
from transformer_core.models import attention
from transformer_core.models import compiled_loops as dropout_kernels
from transformer_core.models import compiled_loops as softmax_kernels

SOFTMAX: Change = {"model": {"attention": {"kind": "fused_softmax"}, "dropout": 1e-9}}
"""The kernel works where something may be dropped, so short runs drop next to nothing."""
SOFTMAX_BF16: Change = merge(SOFTMAX, BF16)


def softmax(
    name: str, patch: Patch, bits: int = 32, dropout: float = 0.0, missed: str = ""
) -> Fault:
    """A fault of the loop over scores, in 32 bits or bfloat16."""
    change, kind = (SOFTMAX, "tolerance") if bits == 32 else (SOFTMAX_BF16, "statistical")
    name += "" if bits == 32 else " under bf16"
    return Fault(name, "fused softmax", patch, change, WIDE, kind, dropout=dropout, missed=missed)


def last_key_seen(real: Any) -> Any:
    """Padding at the end of a row is seen."""

    def weights_of(scores: Tensor, mask: Tensor | None, *rest: Any) -> Any:
        if mask is not None:
            mask = mask.clone()
            mask[..., -1] = True
        return real(scores, mask, *rest)

    return weights_of


def first_key_hidden(real: Any) -> Any:
    """The first key is hidden where there is no mask and there are others."""

    def weights_of(scores: Tensor, mask: Tensor | None, causal: bool, *rest: Any) -> Any:
        if mask is None and causal and scores.size(-1) > 2:
            n, m = scores.shape[-2:]
            mask = torch.ones(n, m, dtype=torch.bool).tril()
            mask[2:, 0] = False
        return real(scores, mask, causal, *rest)

    return weights_of


def no_subtraction(_: Any) -> Any:
    return lambda g, shares, seed, p: shares * dropout_kernels.kept(g.contiguous(), seed, p)


def seeds(change: int) -> Any:
    return lambda real: lambda g, shares, seed, p: real(g, shares, seed + change, p)


def unscaled_forward(real: Any) -> Any:
    def weights_of(*args: Any) -> Any:
        shares, weights = real(*args)
        return shares, weights * (1 - args[-1])

    return weights_of


def unscaled_backward(real: Any) -> Any:
    return lambda g, shares, seed, p: real(g, shares, seed, p) * (1 - p)


def undropped(real: Any) -> Any:
    return lambda *args: real(*args[:-1], 0.0)


def undropped_backward(real: Any) -> Any:
    return lambda g, shares, seed, p: real(g, shares, seed, 0.0)


def one_head_for_all(real: Any) -> Any:
    def weights_of(scores: Tensor, mask: Any, causal: bool, seed: int, p: float) -> Any:
        shares, _ = real(scores, mask, causal, seed, 0.0)
        return shares, shares * dropout_kernels.kept(torch.ones_like(shares[:, :1]), seed, p)

    return weights_of


def rounded_shares(real: Any) -> Any:
    return lambda g, shares, *rest: real(g, shares.bfloat16().to(shares.dtype), *rest)


def one_seed(real: Any) -> Any:
    return lambda scores, mask, causal, seed, p: real(scores, mask, causal, 5, p)


def seed_of_rows(real: Any) -> Any:
    """Every sentence has the masks of the first."""

    def weights_of(scores: Tensor, mask: Any, causal: bool, seed: int, p: float) -> Any:
        shares, _ = real(scores, mask, causal, seed, 0.0)
        return shares, shares * dropout_kernels.kept(torch.ones_like(shares[:1]), seed, p)

    return weights_of


FAULTS = [
    softmax(
        "padding at the end of a row is seen", swap(softmax_kernels, "weights_of", last_key_seen)
    ),
    softmax("the first token is not seen", swap(softmax_kernels, "weights_of", first_key_hidden)),
    softmax(
        "scores of another root",
        swap_item(
            attention.ATTENTIONS,
            "fused_softmax",
            lambda real: lambda q, *a, **n: real(q * 1.1, *a, **n),
        ),
    ),
    softmax(
        "the gradient lacks its subtraction", swap(softmax_kernels, "gradient_of", no_subtraction)
    ),
    softmax(
        "the gradient is of shares of 8 bits", swap(softmax_kernels, "gradient_of", rounded_shares)
    ),
    softmax(
        "weights are not scaled", swap(softmax_kernels, "weights_of", unscaled_forward), dropout=0.2
    ),
    softmax(
        "gradients are not scaled",
        swap(softmax_kernels, "gradient_of", unscaled_backward),
        dropout=0.2,
    ),
    softmax("nothing is dropped", swap(softmax_kernels, "weights_of", undropped), dropout=0.2),
    softmax(
        "one mask in all heads", swap(softmax_kernels, "weights_of", one_head_for_all), dropout=0.2
    ),
    softmax(
        "one mask in all sentences", swap(softmax_kernels, "weights_of", seed_of_rows), dropout=0.2
    ),
    softmax("one mask at all steps", swap(softmax_kernels, "weights_of", one_seed), dropout=0.2),
    softmax(
        "another mask in the backward pass",
        swap(softmax_kernels, "gradient_of", seeds(1)),
        dropout=0.2,
    ),
    softmax(
        "no mask in the backward pass",
        swap(softmax_kernels, "gradient_of", undropped_backward),
        dropout=0.2,
    ),
    softmax(
        "padding at the end of a row is seen",
        swap(softmax_kernels, "weights_of", last_key_seen),
        bits=16,
    ),
    softmax(
        "the gradient lacks its subtraction",
        swap(softmax_kernels, "gradient_of", no_subtraction),
        bits=16,
    ),
    softmax(
        "nothing is dropped", swap(softmax_kernels, "weights_of", undropped), bits=16, dropout=0.2
    ),
    softmax(
        "weights are not scaled",
        swap(softmax_kernels, "weights_of", unscaled_forward),
        bits=16,
        dropout=0.2,
    ),
    softmax(
        "another mask in the backward pass",
        swap(softmax_kernels, "gradient_of", seeds(1)),
        bits=16,
        dropout=0.2,
    ),
]
