"""Kernels, and layers that are computed once more."""

from unittest import mock

import torch
import torch.nn.functional as F
import torch.utils.checkpoint as recomputation
from torch import Tensor

from tests.attacks.planted.fault import CHECKPOINT, PLAIN_ATTENTION, fault
from tests.attacks.planted.planting import result, swap
from transformer_core.models import attention, qkv_projection, sublayers
from transformer_core.models import transformer as transformer_module
from transformer_core.training import precision as autocast


@fault(
    "recomputed layers do not reach the encoder",
    "activation checkpointing",
    recomputation,
    "checkpoint",
    change=CHECKPOINT,
)
def detached_memory(real, layer, x, *rest, **named):
    if rest and isinstance(rest[0], Tensor) and rest[0].is_floating_point():
        rest = (rest[0].detach(), *rest[1:])
    return real(layer, x, *rest, **named)


fault(
    "fused projection with keys and values exchanged",
    "kernels",
    swap(
        qkv_projection.FusedProjection,
        "forward",
        result(lambda t: (t[0], t[2], t[1]) if len(t) == 3 else t),
    ),
)
fault(
    "a layout that mixes heads and parts",
    "kernels",
    swap(
        qkv_projection.LayoutProjection,
        "forward",
        result(lambda t: tuple(x.flip(1) if i == 0 else x for i, x in enumerate(t))),
    ),
    change={"model": {"qkv": {"kind": "layout", "outermost": "qkv"}}},
)


@fault("layer normalization with another eps", "kernels", F, "layer_norm")
def _(real, x, n, w, b, e):
    return real(x, n, w, b, 1e-3)


@fault("ReLU that leaks", "kernels", F, "relu")
def _(real, x):
    return F.leaky_relu(x, 0.01)


@fault(
    "attention of the plain kernel scaled by another root",
    "kernels",
    attention.ATTENTIONS,
    "reference",
    change=PLAIN_ATTENTION,
)
def _(real, q, *a, **n):
    return real(q * 1.1, *a, **n)


fault(
    "keys and values of all layers together, of the wrong layer",
    "kernels",
    swap(transformer_module, "project_together", result(lambda memories: memories[::-1])),
    change={"model": {"memory_products": "together"}},
)
fault(
    "the clipping in the optimizer's kernel adds another constant",
    "kernels",
    lambda: mock.patch.object(autocast, "_EPSILON", 0.01),
    change={"training": {"clipping": "folded"}},
)


@fault("one head of a layer computes nothing", "kernels", sublayers.CrossAttention, "attention")
def first_head_silent(real, self, q, k, v, *rest):
    return real(self, q, k, torch.cat([v[:, :1] * 0, v[:, 1:]], 1), *rest)
