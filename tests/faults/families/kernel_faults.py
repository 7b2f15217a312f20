"""Kernels, layers that are computed once more, and resuming."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from tests.faults.families.fault import PLAIN_ATTENTION, Fault
from tests.faults.families.planting import Patch, result, swap, swap_item
from transformer_core.model import transformer as transformer_module
from transformer_core.model.layers import attention, qkv_projection
from transformer_core.train import checkpoint


def lost_on_loading(what: str) -> Patch:
    """A checkpoint that does not bring back everything."""

    def make(real: Any) -> Any:
        if what == "model":
            return lambda setup, tensors: None
        return lambda setup, tensors, scalars: None

    return swap(checkpoint, f"_load_{what}", make)


def steps_lost_on_loading(real: Any) -> Any:
    def load(setup: Any, tensors: Any, scalars: Any) -> None:
        real(setup, tensors, scalars)
        for state in setup.optimizer.state.values():
            state["step"].zero_()

    return load


def detached_memory(real: Any) -> Any:
    def recompute(layer: Any, x: Tensor, *rest: Any, **named: Any) -> Any:
        if rest and isinstance(rest[0], Tensor) and rest[0].is_floating_point():
            rest = (rest[0].detach(), *rest[1:])
        return real(layer, x, *rest, **named)

    return recompute


FAULTS = [
    Fault(
        "recomputed layers do not reach the encoder",
        "activation checkpointing",
        swap(transformer_module, "checkpoint", detached_memory),
        {"model": {"checkpoint": "layers"}},
    ),
    Fault("resumed without the moments", "resuming", lost_on_loading("optimizer")),
    Fault("resumed without the weights", "resuming", lost_on_loading("model")),
    Fault(
        "resumed with the step count at 0",
        "resuming",
        swap(checkpoint, "_load_optimizer", steps_lost_on_loading),
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
]
