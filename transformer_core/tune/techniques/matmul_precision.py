"""Lower precision inside float32 matrix products: bfloat16 on CPUs with AMX, TF32 on GPUs.

PyTorch, ``torch.set_float32_matmul_precision``.
"""

from pathlib import Path
from typing import Any, ClassVar

import torch

from transformer_core.tune.facts import Watch
from transformer_core.tune.source import Source
from transformer_core.tune.techniques.technique import Rounding, Technique


class Bf16Matmul(Technique):
    name = "bf16_matmul"
    words = "bfloat16 inside float32 matrix products"
    group = "format"
    rounding: ClassVar[Rounding] = "bfloat16"
    precision = "medium"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] == "cpu" and not _has_amx():
            return "torch uses bfloat16 inside float32 products only on CPUs with AMX"
        return None

    def prepare(self, watch: Watch) -> None:
        torch.set_float32_matmul_precision(self.precision)

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        return source.after_imports([f'torch.set_float32_matmul_precision("{self.precision}")'])

    def lines(self, facts: dict[str, Any]) -> list[str]:
        return [f'Begin with torch.set_float32_matmul_precision("{self.precision}").']


class Tf32(Bf16Matmul):
    name = "tf32"
    words = "TensorFloat-32 inside float32 matrix products"
    rounding: ClassVar[Rounding] = "tf32"
    precision = "high"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        return None if facts["device"] == "cuda" else "TensorFloat-32 needs a GPU"


def _has_amx() -> bool:
    """Whether this CPU multiplies bfloat16 tiles (Intel, "Advanced Matrix Extensions")."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return any("amx_bf16" in line for line in lines if line.startswith("flags"))
