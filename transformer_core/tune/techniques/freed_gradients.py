"""Gradients freed between steps, not filled with zeros: the next step writes them instead of adding
to them. PyTorch, ``torch.optim.Optimizer.zero_grad``."""

from typing import TYPE_CHECKING, Any

from transformer_core.tune.techniques.technique import Technique

if TYPE_CHECKING:
    from transformer_core.tune.facts import Watch


class FreedGradients(Technique):
    name = "freed_gradients"
    words = "gradients freed between steps, not filled with zeros"
    group = "gradients"
    rounding = "exact"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        return None if facts["counts"].get("zeroed") else "the script frees its gradients already"

    def prepare(self, watch: "Watch") -> None:
        import torch

        for owner in (torch.optim.Optimizer, torch.nn.Module):
            _free(owner)

    def lines(self, facts: dict[str, Any]) -> list[str]:
        return ["Call zero_grad() without set_to_none=False."]


def _free(owner: Any) -> None:
    original = owner.zero_grad

    def zero_grad(made: Any, set_to_none: bool = True) -> None:
        original(made)

    owner.zero_grad = zero_grad


ALL = [FreedGradients()]
