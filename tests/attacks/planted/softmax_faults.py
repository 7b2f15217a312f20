"""Mask, softmax and dropout of attention in one pass over the scores."""

from typing import Any

import torch

from schemas.base import merge
from tests.attacks.planted.fault import BF16, WIDE, Change, fault
from transformer_core.models import attention, compiled_loops

SOFTMAX: Change = {"model": {"attention": {"kind": "fused_softmax"}, "dropout": 1e-9}}
"""The kernel works where something may be dropped, so short runs drop next to nothing."""
SOFTMAX_BF16: Change = merge(SOFTMAX, BF16)


def softmax(name: str, *place: Any, bits: int = 32, **more: Any) -> Any:
    """A fault of the loop over scores, in 32 bits or bfloat16."""
    if bits == 32:
        return fault(name, "fused softmax", *place, change=SOFTMAX, base=WIDE, **more)
    more |= {"change": SOFTMAX_BF16, "kind": "statistical"}
    return fault(f"{name} under bf16", "fused softmax", *place, base=WIDE, **more)


@softmax("padding at the end of a row is seen", compiled_loops, "weights_of", bits=16)
@softmax("padding at the end of a row is seen", compiled_loops, "weights_of")
def last_key_seen(real, scores, mask, *rest):
    if mask is not None:
        mask = mask.clone()
        mask[..., -1] = True
    return real(scores, mask, *rest)


@softmax("the first token is not seen", compiled_loops, "weights_of")
def first_key_hidden(real, scores, mask, causal, *rest):
    """The first key is hidden where there is no mask and there are others."""
    if mask is None and causal and scores.size(-1) > 2:
        n, m = scores.shape[-2:]
        mask = torch.ones(n, m, dtype=torch.bool).tril()
        mask[2:, 0] = False
    return real(scores, mask, causal, *rest)


@softmax("scores of another root", attention.ATTENTIONS, "fused_softmax")
def _(real, q, *a, **n):
    return real(q * 1.1, *a, **n)


@softmax("the gradient lacks its subtraction", compiled_loops, "gradient_of", bits=16)
@softmax("the gradient lacks its subtraction", compiled_loops, "gradient_of")
def no_subtraction(real, g, shares, seed, p):
    return shares * compiled_loops.kept(g.contiguous(), seed, p)


@softmax("the gradient is of shares of 8 bits", compiled_loops, "gradient_of")
def rounded_shares(real, g, shares, *rest):
    return real(g, shares.bfloat16().to(shares.dtype), *rest)


@softmax("weights are not scaled", compiled_loops, "weights_of", bits=16, dropout=0.2)
@softmax("weights are not scaled", compiled_loops, "weights_of", dropout=0.2)
def unscaled_forward(real, *args):
    shares, weights = real(*args)
    return shares, weights * (1 - args[-1])


@softmax("gradients are not scaled", compiled_loops, "gradient_of", dropout=0.2)
def unscaled_backward(real, g, shares, seed, p):
    return real(g, shares, seed, p) * (1 - p)


@softmax("nothing is dropped", compiled_loops, "weights_of", bits=16, dropout=0.2)
@softmax("nothing is dropped", compiled_loops, "weights_of", dropout=0.2)
def undropped(real, *args):
    return real(*args[:-1], 0.0)


@softmax("one mask in all heads", compiled_loops, "weights_of", dropout=0.2)
def one_head_for_all(real, scores, mask, causal, seed, p):
    shares, _ = real(scores, mask, causal, seed, 0.0)
    return shares, shares * compiled_loops.kept(torch.ones_like(shares[:, :1]), seed, p)


@softmax("one mask in all sentences", compiled_loops, "weights_of", dropout=0.2)
def seed_of_rows(real, scores, mask, causal, seed, p):
    shares, _ = real(scores, mask, causal, seed, 0.0)
    return shares, shares * compiled_loops.kept(torch.ones_like(shares[:1]), seed, p)


@softmax("one mask at all steps", compiled_loops, "weights_of", dropout=0.2)
def one_seed(real, scores, mask, causal, seed, p):
    return real(scores, mask, causal, 5, p)


@softmax("another mask in the backward pass", compiled_loops, "gradient_of", bits=16, dropout=0.2)
@softmax("another mask in the backward pass", compiled_loops, "gradient_of", dropout=0.2)
def _(real, g, shares, seed, p):
    return real(g, shares, seed + 1, p)


@softmax("no mask in the backward pass", compiled_loops, "gradient_of", dropout=0.2)
def undropped_backward(real, g, shares, seed, p):
    return real(g, shares, seed, 0.0)
