"""torch's fused and multi-tensor kernels for the update of Adam, AdamW, SGD and Adagrad."""

from typing import Any

import torch

from transformer_core.tune.boundaries import replacing
from transformer_core.tune.facts import Watch
from transformer_core.tune.source import Source
from transformer_core.tune.techniques.technique import Technique

KERNELS = {"Adam", "AdamW", "SGD", "Adagrad"}
OPTIONS = ("fused", "foreach")
"""If a script sets one of them, to any value, its choice is kept."""


class FusedOptimizer(Technique):
    name = "fused_optimizer"
    words = "torch's fused kernel for the update"
    group = "update"
    rounding = "float32"
    option = "fused"
    idle = "no optimizer could be made fused"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        used = set(facts["optimizers"])
        if not used & KERNELS:
            found = ", ".join(sorted(used)) or "no optimizer of torch"
            known = ", ".join(sorted(KERNELS))
            return f"the script uses {found}; torch has {self.option} kernels for {known}"
        if all(group.get(self.option) for group in facts["groups"]):
            return f"the optimizer is {self.option} already"
        if all(any(group.get(o) is not None for o in OPTIONS) for group in facts["groups"]):
            return "the script chooses the kernels of its optimizer itself"
        return None

    def prepare(self, watch: Watch) -> None:
        for name in KERNELS:
            replacing(getattr(torch.optim, name), "__init__")(self._made)

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        names = [name for name in facts["optimizers"] if name in KERNELS]
        return source.keyword("optimizer", names, **{self.option: "True"})

    def lines(self, facts: dict[str, Any]) -> list[str]:
        return [f"Give the optimizer {self.option}=True."]

    def _made(self, original: Any, made: Any, *args: Any, **kwargs: Any) -> None:
        """Make an optimizer with the kernel, unless the script chooses one itself."""
        if all(kwargs.get(option) is None for option in OPTIONS):
            kwargs = {k: v for k, v in kwargs.items() if k not in OPTIONS} | {self.option: True}
            self.applied += 1
        original(made, *args, **kwargs)


class ForeachOptimizer(FusedOptimizer):
    name = "foreach_optimizer"
    words = "multi-tensor kernels for the update"
    option = "foreach"
    idle = "no optimizer could be made foreach"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] == "cuda":
            return "torch's default on GPUs"
        return super().obstacle(facts)
