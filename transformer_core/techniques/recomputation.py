"""Selective recomputation of the activations of a layer in the backward pass."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch.utils.checkpoint import CheckpointPolicy

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
    contexts = partial(create_selective_checkpoint_contexts, kept)
    return partial(checkpoint, call, use_reentrant=False, context_fn=contexts)


@cache
def _products() -> frozenset[Any]:
    """torch's operators whose results we store: matrix products, and fused attention."""
    from torch import ops

    aten = ops.aten
    return frozenset(
        [
            aten.mm.default,
            aten.addmm.default,
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            aten._scaled_dot_product_flash_attention.default,
            aten._scaled_dot_product_efficient_attention.default,
            aten._scaled_dot_product_cudnn_attention.default,
        ]
    )


def kept(context: Any, operator: Any, *given: Any, **named: Any) -> "CheckpointPolicy":
    """Whether torch stores the result of this call of an ``operator``. Not that of attention that
    drops: its kernel would draw no random numbers in the second computation, so every later dropout
    of the layer would draw others than in the first, and the gradient would be wrong."""
    from torch.utils.checkpoint import CheckpointPolicy

    if operator in _products() and not _dropped(operator, given, named):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def _dropped(operator: Any, given: Sequence[Any], named: Mapping[str, Any]) -> float:
    """The share of attention weights that this call drops; 0 for an operator that drops none."""
    for number, argument in enumerate(operator._schema.arguments):
        if argument.name == "dropout_p":
            share = named.get(argument.name, argument.default_value)
            return float(given[number] if number < len(given) else share)
    return 0.0
