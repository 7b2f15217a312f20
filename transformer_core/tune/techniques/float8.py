"""Products of linear layers in float8, by torchao, on GPUs that support it.

Micikevicius et al., FP8 Formats for Deep Learning (arXiv 2209.05433).
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from torch import nn

from transformer_core.tune.techniques.technique import Rounding, Technique

CAPABILITY = (8, 9)
"""Compute capability of the first GPUs that multiply float8: Ada."""
MULTIPLE = 16
"""Rows and columns of a product are a multiple of this."""


class Float8(Technique):
    name = "float8"
    words = "products of linear layers in float8"
    group = "format"
    advice = (
        "Call torchao.float8.convert_to_float8_training(model) before the first step, for linear "
        f"layers whose sizes are multiples of {MULTIPLE}."
    )
    rounding: ClassVar[Rounding] = "float8"
    idle = f"no linear layer has sizes that are multiples of {MULTIPLE}"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] != "cuda":
            return "products in float8 need a GPU"
        if tuple(facts["capability"]) < CAPABILITY:
            found = ".".join(map(str, facts["capability"]))
            return f"products in float8 need compute capability 8.9; this GPU has {found}"
        if find_spec("torchao") is None:
            return "needs torchao: pip install torchao"
        return None

    def module(self, module: nn.Module) -> None:
        convert = import_module("torchao.float8").convert_to_float8_training

        def fits(part: Any, name: str) -> bool:
            wide = part.in_features % MULTIPLE == 0 and part.out_features % MULTIPLE == 0
            self.applied += wide
            return bool(wide)

        convert(module, module_filter_fn=fits)
