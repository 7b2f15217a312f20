"""Number formats."""

from typing import Any

import torch
from torch import nn

from tests.attacks.planted.fault import FP16, Fault, reduced
from tests.attacks.planted.planting import around_step, before_update, keep, swap
from transformer_core.training import precision as autocast


def coarse(parameters: list[nn.Parameter]) -> None:
    """Gradients with 3 significant bits."""
    for p in parameters:
        if p.grad is not None:
            mantissa, exponent = torch.frexp(p.grad)
            p.grad.copy_(torch.ldexp((mantissa * 8).round() / 8, exponent))


def rounded_weights(trainer: Any, _: Any, __: int) -> None:
    for p in trainer.model.parameters():
        p.copy_(p.bfloat16())


FAULTS = [
    reduced(
        "gradients of half the size under bf16",
        swap(autocast.Autocast, "backward", lambda _: lambda self, loss: (loss / 2).backward()),
    ),
    reduced("the last decoder layer never learns under bf16", keep(lambda n, _: "decoder.1" in n)),
    reduced("weights rounded to bf16 after each step", around_step(rounded_weights)),
    reduced("gradients with 3 significant bits", before_update(coarse)),
    reduced(
        "gradients 5 % too large under bf16",
        swap(autocast.Autocast, "backward", lambda _: lambda self, loss: (loss * 1.05).backward()),
    ),
    reduced(
        "the loss scale stays in the gradients",
        swap(autocast.ScaledAutocast, "unscale", lambda _: lambda self, optim: None),
        FP16,
    ),
    Fault(
        "32-bit products secretly in bf16",
        "precision",
        swap(
            autocast.Precision,
            "autocast",
            lambda _: lambda self: torch.autocast("cpu", dtype=torch.bfloat16),
        ),
    ),
]
