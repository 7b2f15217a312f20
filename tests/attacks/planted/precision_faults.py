"""Number formats."""

import torch

from tests.attacks.planted.fault import FP16, fault, reduced
from tests.attacks.planted.planting import around_step, before_update, keep
from transformer_core.training import precision


@reduced("gradients of half the size under bf16", precision.Autocast, "backward")
def _(real, self, loss):
    return (loss / 2).backward()


reduced("the last decoder layer never learns under bf16", keep(lambda n, _: "decoder.1" in n))


@reduced("weights rounded to bf16 after each step", around_step)
def rounded_weights(trainer, _, __):
    for p in trainer.model.parameters():
        p.copy_(p.bfloat16())


@reduced("gradients with 3 significant bits", before_update)
def coarse(parameters):
    for p in parameters:
        if p.grad is not None:
            mantissa, exponent = torch.frexp(p.grad)
            p.grad.copy_(torch.ldexp((mantissa * 8).round() / 8, exponent))


@reduced("gradients 5 % too large under bf16", precision.Autocast, "backward")
def _(real, self, loss):
    return (loss * 1.05).backward()


@reduced("the loss scale stays in the gradients", precision.ScaledAutocast, "unscale", change=FP16)
def _(real, self, optim):
    return None


@fault("32-bit products secretly in bf16", "precision", precision.Precision, "autocast")
def _(real, self):
    return torch.autocast("cpu", dtype=torch.bfloat16)
