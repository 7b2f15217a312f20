"""torch.compile: of each repeated block (regional compilation), or of the whole model."""

import shutil
from importlib import import_module
from typing import Any

from torch import nn

from transformer_core.tune.facts import blocks
from transformer_core.tune.source import Source
from transformer_core.tune.techniques.technique import Technique


class CompiledBlocks(Technique):
    name = "compiled_blocks"
    words = "torch.compile of each repeated block"
    group = "compile"
    advice = "Call .compile() of each {block} of the model before the first step."
    slow = True
    place = 0
    idle = "torch compiled nothing: it leaves out its own layers, and blocks called by .forward()"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["compiled"]:
            return "the script compiles its model already"
        if facts["block"] is None:
            return "the model has no layer that repeats"
        if facts["device"] == "cpu" and shutil.which("g++") is None:
            return "torch.compile needs a C++ compiler: apt-get install g++"
        return None

    def module(self, module: nn.Module) -> None:
        for block in blocks(module):
            block.compile()
            self.applied += 1

    def without_effect(self) -> str | None:
        compiled = self.applied and import_module("torch._dynamo.utils").counters["frames"]["total"]
        return None if compiled else self.idle

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        return source.before_loop(
            [
                "for block in MODEL.modules():",
                f'    if type(block).__name__ == "{facts["block"]}":',
                "        block.compile()",
            ]
        )


class CompiledModel(CompiledBlocks):
    name = "compiled_model"
    words = "torch.compile of the whole model"
    advice = "Call model.compile() before the first step."

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] == "cpu" and self.name not in facts["named"]:
            return f"compiling a whole model takes minutes on a CPU: to try it, name it (--only {self.name})"
        return super().obstacle(facts | {"block": "model"})

    def module(self, module: nn.Module) -> None:
        module.compile()
        self.applied += 1

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        return source.before_loop(["MODEL.compile()"])
