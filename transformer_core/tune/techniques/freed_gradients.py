"""Gradients freed between steps, not filled with zeros: the next step writes them instead of adding
to them. PyTorch, ``torch.optim.Optimizer.zero_grad``."""

from typing import Any

import torch

from transformer_core.tune.boundaries import replacing
from transformer_core.tune.facts import Watch
from transformer_core.tune.techniques.technique import Technique


class FreedGradients(Technique):
    name = "freed_gradients"
    words = "gradients freed between steps, not filled with zeros"
    group = "gradients"
    advice = "Call zero_grad() without set_to_none=False."
    rounding = "exact"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        return None if facts["counts"].get("zeroed") else "the script frees its gradients already"

    def prepare(self, watch: Watch) -> None:
        def zero_grad(original: Any, made: Any, set_to_none: bool = True) -> None:
            original(made)

        for owner in (torch.optim.Optimizer, torch.nn.Module):
            replacing(owner, "zero_grad")(zero_grad)
