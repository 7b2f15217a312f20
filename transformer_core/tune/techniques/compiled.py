"""torch.compile: of each repeated block (regional compilation), or of the whole model."""

import shutil
from typing import TYPE_CHECKING, Any

from transformer_core.tune.techniques.technique import Technique

if TYPE_CHECKING:
    from torch import nn

    from transformer_core.tune.facts import Watch
    from transformer_core.tune.source import Source


class CompiledBlocks(Technique):
    name = "compiled_blocks"
    words = "torch.compile of each repeated block"
    group = "compile"
    rounding = "float32"
    slow = True

    def __init__(self) -> None:
        self.compiled = 0

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["compiled"]:
            return "the script compiles its model already"
        if facts["block"] is None:
            return "the model has no layer that repeats"
        if facts["device"] == "cpu" and shutil.which("g++") is None:
            return "torch.compile needs a C++ compiler: apt-get install g++"
        return None

    def module(self, module: "nn.Module") -> None:
        from transformer_core.tune.facts import blocks, repeated_block

        name = repeated_block([module])
        if name is not None:
            for block in blocks(module, name):
                block.compile()
                self.compiled += 1

    def without_effect(self, watch: "Watch") -> str | None:
        return None if self.compiled else "no block was compiled"

    def edit(self, source: "Source", facts: dict[str, Any]) -> bool:
        name = facts["block"]
        return bool(
            source.before_loop(
                [
                    "for block in MODEL.modules():",
                    f'    if type(block).__name__ == "{name}":',
                    "        block.compile()",
                ]
            )
        )

    def lines(self, facts: dict[str, Any]) -> list[str]:
        return [f"Call .compile() of each {facts['block']} of the model before the first step."]


class CompiledModel(CompiledBlocks):
    name = "compiled_model"
    words = "torch.compile of the whole model"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] == "cpu" and self.name not in facts["named"]:
            return "compiling a whole model takes minutes on a CPU: name it to try it"
        return super().obstacle(facts | {"block": "model"})

    def module(self, module: "nn.Module") -> None:
        module.compile()
        self.compiled += 1

    def edit(self, source: "Source", facts: dict[str, Any]) -> bool:
        return bool(source.before_loop(["MODEL.compile()"]))

    def lines(self, facts: dict[str, Any]) -> list[str]:
        return ["Call model.compile() before the first step."]


ALL = [CompiledBlocks(), CompiledModel()]
