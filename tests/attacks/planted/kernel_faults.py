"""Kernels, and layers that are computed once more."""

from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import torch.utils.checkpoint as recomputation
from torch import Tensor

from tests.attacks.planted.fault import PLAIN_ATTENTION, Fault
from tests.attacks.planted.planting import result, swap, swap_item
from transformer_core.models import attention, qkv_projection, sublayers
from transformer_core.models import transformer as transformer_module
from transformer_core.training import precision as autocast


def detached_memory(real: Any) -> Any:
    def recompute(layer: Any, x: Tensor, *rest: Any, **named: Any) -> Any:
        if rest and isinstance(rest[0], Tensor) and rest[0].is_floating_point():
            rest = (rest[0].detach(), *rest[1:])
        return real(layer, x, *rest, **named)

    return recompute


def first_head_silent(real: Any) -> Any:
    def attend(self: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
        return real(self, q, k, torch.cat([v[:, :1] * 0, v[:, 1:]], 1), *rest)

    return attend


FAULTS = [
    Fault(
        "recomputed layers do not reach the encoder",
        "activation checkpointing",
        swap(recomputation, "checkpoint", detached_memory),
        {"model": {"checkpoint": "layers"}},
    ),
    Fault(
        "fused projection with keys and values exchanged",
        "kernels",
        swap(
            qkv_projection.FusedProjection,
            "forward",
            result(lambda t: (t[0], t[2], t[1]) if len(t) == 3 else t),
        ),
    ),
    Fault(
        "a layout that mixes heads and parts",
        "kernels",
        swap(
            qkv_projection.LayoutProjection,
            "forward",
            result(lambda t: tuple(x.flip(1) if i == 0 else x for i, x in enumerate(t))),
        ),
        {"model": {"qkv": {"kind": "layout", "outermost": "qkv"}}},
    ),
    Fault(
        "layer normalization with another eps",
        "kernels",
        swap(F, "layer_norm", lambda real: lambda x, n, w, b, e: real(x, n, w, b, 1e-3)),
    ),
    Fault(
        "ReLU that leaks",
        "kernels",
        swap(F, "relu", lambda _: lambda x: F.leaky_relu(x, 0.01)),
    ),
    Fault(
        "attention of the plain kernel scaled by another root",
        "kernels",
        swap_item(
            attention.ATTENTIONS,
            "reference",
            lambda real: lambda q, *a, **n: real(q * 1.1, *a, **n),
        ),
        PLAIN_ATTENTION,
    ),
    Fault(
        "keys and values of all layers together, of the wrong layer",
        "kernels",
        swap(transformer_module, "project_together", result(lambda memories: memories[::-1])),
        {"model": {"memory_products": "together"}},
    ),
    Fault(
        "the clipping in the optimizer's kernel adds another constant",
        "kernels",
        lambda: mock.patch.object(autocast, "_EPSILON", 0.01),
        {"training": {"clipping": "folded"}},
    ),
    Fault(
        "one head of a layer computes nothing",
        "kernels",
        swap(sublayers.CrossAttention, "attention", first_head_silent),
    ),
]
