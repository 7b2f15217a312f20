"""Selective recomputation of the activations of a layer in the backward pass."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

Recomputed = Literal["none", "layers", "alternate", "products"]
"""Activations that are recomputed: those of no layer, of all, of every second, or all that is
cheaper to compute than a matrix product."""


def recomputing(kind: Recomputed, number: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``call`` of layer ``number`` so that backward recomputes its activations as ``kind``
    says, with the same random numbers (arXiv 1604.06174)."""
    import torch

    if kind == "none" or (kind == "alternate" and number % 2) or not torch.is_grad_enabled():
        return call
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    if kind != "products":
        return partial(checkpoint, call, use_reentrant=False)
    kept = partial(create_selective_checkpoint_contexts, _products())
    return partial(checkpoint, call, use_reentrant=False, context_fn=kept)


def _products() -> list[Any]:
    """torch's operators whose results we store: matrix products, and fused attention."""
    from torch import ops

    aten = ops.aten
    return [
        aten.mm.default,
        aten.addmm.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    ]
