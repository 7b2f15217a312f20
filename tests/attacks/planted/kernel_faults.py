"""Kernels, and layers that are computed once more."""

from unittest import mock

import torch
import torch.nn.functional as F
import torch.utils.checkpoint as recomputation
from torch import Tensor

from tests.attacks.planted.fault import CHECKPOINT, PLAIN_ATTENTION, fault, faults_of
from tests.attacks.planted.planting import result, swap
from transformer_core.models import attention, qkv_projection, sublayers, transformer
from transformer_core.training import precision

kernel = faults_of("kernels")


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


kernel(
    "fused projection with keys and values exchanged",
    swap(
        qkv_projection.FusedProjection,
        "forward",
        result(lambda t: (t[0], t[2], t[1]) if len(t) == 3 else t),
    ),
)
kernel(
    "a layout that mixes heads and parts",
    swap(
        qkv_projection.LayoutProjection,
        "forward",
        result(lambda t: tuple(x.flip(1) if i == 0 else x for i, x in enumerate(t))),
    ),
    change={"model": {"qkv": {"kind": "layout", "outermost": "qkv"}}},
)


@kernel("layer normalization with another eps", F, "layer_norm")
def _(real, x, n, w, b, e):
    return real(x, n, w, b, 1e-3)


kernel("ReLU that leaks", F, "relu", lambda real, x: F.leaky_relu(x, 0.01))
kernel(
    "attention of the plain kernel scaled by another root",
    attention.ATTENTIONS,
    "reference",
    lambda real, q, *a, **n: real(q * 1.1, *a, **n),
    change=PLAIN_ATTENTION,
)
kernel(
    "keys and values of all layers together, of the wrong layer",
    swap(transformer, "project_together", result(lambda memories: memories[::-1])),
    change={"model": {"memory_products": "together"}},
)
kernel(
    "the clipping in the optimizer's kernel adds another constant",
    lambda: mock.patch.object(precision, "_EPSILON", 0.01),
    change={"training": {"clipping": "folded"}},
)


@kernel("one head of a layer computes nothing", sublayers.CrossAttention, "attention")
def first_head_silent(real, self, q, k, v, *rest):
    return real(self, q, k, torch.cat([v[:, :1] * 0, v[:, 1:]], 1), *rest)
