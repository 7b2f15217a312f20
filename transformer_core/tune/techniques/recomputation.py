"""Activations kept where the script recomputes them, or recomputed where it keeps them.

Chen et al., Training Deep Nets with Sublinear Memory Cost (arXiv 1604.06174).
"""

from functools import partial
from typing import Any

import torch
from torch import nn

from transformer_core.tune.boundaries import wrap
from transformer_core.tune.facts import Watch, blocks
from transformer_core.tune.source import Source
from transformer_core.tune.techniques.technique import Technique

OPTIONS = (
    *("use_reentrant", "context_fn", "determinism_check", "debug"),
    *("preserve_rng_state", "early_stop"),
)
"""Arguments of ``torch.utils.checkpoint.checkpoint`` itself, which a plain call does not take."""


class KeptActivations(Technique):
    name = "kept_activations"
    words = "activations kept instead of recomputed"
    group = "recomputation"
    advice = "Call the blocks directly, not through torch.utils.checkpoint."
    idle = "the script recomputes by other means"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        return None if facts["counts"].get("checkpoint") else "the script recomputes nothing"

    def prepare(self, watch: Watch) -> None:
        def kept(function: Any, *args: Any, **kwargs: Any) -> Any:
            self.applied += 1
            return function(*args, **{k: v for k, v in kwargs.items() if k not in OPTIONS})

        torch.utils.checkpoint.checkpoint = kept


class RecomputedBlocks(Technique):
    """Slower by about a forward pass, but saves the memory of activations inside the blocks."""

    name = "recomputed_blocks"
    words = "each repeated block recomputed in the backward pass, to save memory"
    group = "recomputation"
    advice = "Call each {block} through torch.utils.checkpoint.checkpoint(block, ..., use_reentrant=False)."
    usual = False
    idle = "no block was found"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["counts"].get("checkpoint"):
            return "the script recomputes already"
        return None if facts["block"] else "the model has no layer that repeats"

    def module(self, module: nn.Module) -> None:
        checkpoint = torch.utils.checkpoint.checkpoint
        for block in blocks(module):
            wrap(block, partial(checkpoint, use_reentrant=False))
            self.applied += 1

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        # The loop may be in a function that is called once an epoch.
        return source.before_loop(
            [
                "for block in MODEL.modules():",
                f'    if type(block).__name__ == "{facts["block"]}" and "forward" not in vars(block):',
                "        block.forward = functools.partial(",
                "            torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False",
                "        )",
            ]
        )
