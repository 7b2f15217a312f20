"""Optimizers."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from schemas.train import AnyOptimizer


def build_optimizer(
    spec: AnyOptimizer, parameters: Iterable[nn.Parameter], device: torch.device
) -> Optimizer:
    """The optimizer that ``spec`` names; the loop sets its learning rate at every step."""
    return torch.optim.AdamW(
        parameters,
        lr=0.0,
        betas=spec.betas,
        eps=spec.eps,
        weight_decay=spec.weight_decay,
        fused=spec.fused and device.type in ("cuda", "cpu"),
    )
