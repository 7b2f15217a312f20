"""torch's fused and multi-tensor kernels for the update of Adam, AdamW, SGD and Adagrad."""

from typing import TYPE_CHECKING, Any

from transformer_core.tune.techniques.technique import Technique

if TYPE_CHECKING:
    from transformer_core.tune.facts import Watch
    from transformer_core.tune.source import Source

KERNELS = {"Adam", "AdamW", "SGD", "Adagrad"}
OPTIONS = ("fused", "foreach")
"""A script that sets one of them, to whatever value, keeps its choice."""


class FusedOptimizer(Technique):
    name = "fused_optimizer"
    words = "torch's fused kernel for the update"
    group = "update"
    rounding = "float32"
    option = "fused"

    def __init__(self) -> None:
        self.made = 0

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        used = set(facts["optimizers"])
        if not used & KERNELS:
            found = ", ".join(sorted(used)) or "no optimizer of torch"
            return f"the script uses {found}; torch has {self.option} kernels for {_listed()}"
        if all(group.get(self.option) for group in facts["groups"]):
            return f"the optimizer is {self.option} already"
        if all(any(group.get(o) is not None for o in OPTIONS) for group in facts["groups"]):
            return "the script chooses the kernels of its optimizer itself"
        return None

    def prepare(self, watch: "Watch") -> None:
        import torch

        for name in KERNELS:
            self._default(getattr(torch.optim, name))

    def without_effect(self, watch: "Watch") -> str | None:
        return None if self.made else f"no optimizer could be made {self.option}"

    def edit(self, source: "Source", facts: dict[str, Any]) -> bool:
        names = [name for name in facts["optimizers"] if name in KERNELS]
        return source.keyword("optimizer", names, **{self.option: "True"})

    def lines(self, facts: dict[str, Any]) -> list[str]:
        return [f"Give the optimizer {self.option}=True."]

    def _default(self, kind: Any) -> None:
        """Let optimizers of ``kind`` have the kernel where the script says nothing of it."""
        original = kind.__init__

        def init(made: Any, *args: Any, **kwargs: Any) -> None:
            if all(kwargs.get(option) is None for option in OPTIONS):
                kwargs = {k: v for k, v in kwargs.items() if k not in OPTIONS}
                kwargs[self.option] = True
                self.made += 1
            original(made, *args, **kwargs)

        kind.__init__ = init


class ForeachOptimizer(FusedOptimizer):
    name = "foreach_optimizer"
    words = "multi-tensor kernels for the update"
    option = "foreach"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] == "cuda":
            return "torch's default on GPUs"
        return super().obstacle(facts)


def _listed() -> str:
    return ", ".join(sorted(KERNELS))


ALL = [FusedOptimizer(), ForeachOptimizer()]
