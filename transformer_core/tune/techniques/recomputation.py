"""Activations kept where the script computes them again, or computed again where it keeps them.

Chen et al., Training Deep Nets with Sublinear Memory Cost (arXiv 1604.06174).
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from transformer_core.tune.techniques.technique import Technique

if TYPE_CHECKING:
    from torch import nn

    from transformer_core.tune.facts import Watch
    from transformer_core.tune.source import Source


class KeptActivations(Technique):
    name = "kept_activations"
    words = "activations kept instead of computed again"
    group = "recomputation"
    rounding = "float32"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if not facts["counts"].get("checkpoint"):
            return "the script recomputes nothing"
        return None

    def prepare(self, watch: "Watch") -> None:
        import torch

        own = {"use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state"}

        def kept(function: Any, *args: Any, **kwargs: Any) -> Any:
            watch.counts["kept"] += 1
            return function(*args, **{k: v for k, v in kwargs.items() if k not in own})

        torch.utils.checkpoint.checkpoint = kept

    def without_effect(self, watch: "Watch") -> str | None:
        return None if watch.counts["kept"] else "the script recomputes by other means"

    def lines(self, facts: dict[str, Any]) -> list[str]:
        return ["Call the blocks directly, not through torch.utils.checkpoint."]


class RecomputedBlocks(Technique):
    """Slower by about a forward pass, for the memory of the activations inside the blocks."""

    name = "recomputed_blocks"
    words = "each repeated block computed again in the backward pass, to save memory"
    group = "recomputation"
    rounding = "float32"
    usual = False

    def __init__(self) -> None:
        self.wrapped = 0

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["counts"].get("checkpoint"):
            return "the script recomputes already"
        return None if facts["block"] else "the model has no layer that repeats"

    def module(self, module: "nn.Module") -> None:
        from torch.utils.checkpoint import checkpoint

        from transformer_core.tune.boundaries import wrap
        from transformer_core.tune.facts import blocks, repeated_block

        name = repeated_block([module])
        for block in blocks(module, name) if name else []:
            wrap(block, lambda call: partial(checkpoint, call, use_reentrant=False))
            self.wrapped += 1

    def without_effect(self, watch: "Watch") -> str | None:
        return None if self.wrapped else "no block was found"

    def edit(self, source: "Source", facts: dict[str, Any]) -> bool:
        return bool(
            source.before_loop(
                [
                    "from functools import partial",
                    "",
                    "from torch.utils.checkpoint import checkpoint",
                    "",
                    "for block in MODEL.modules():",
                    f'    if type(block).__name__ == "{facts["block"]}":',
                    "        block.forward = partial(checkpoint, block.forward, use_reentrant=False)",
                ]
            )
        )

    def lines(self, facts: dict[str, Any]) -> list[str]:
        return [
            f"Call each {facts['block']} through torch.utils.checkpoint.checkpoint(block, ..., "
            "use_reentrant=False)."
        ]


ALL = [KeptActivations(), RecomputedBlocks()]
