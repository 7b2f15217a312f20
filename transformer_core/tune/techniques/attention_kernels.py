"""One kernel for all calls of torch's ``scaled_dot_product_attention``.

By default torch takes the first kernel that supports a call (PyTorch,
``torch.nn.attention.sdpa_kernel``). Calls that the chosen kernel does not support fail: the technique
is then unsupported.
"""

from typing import Any, ClassVar

import torch

from transformer_core.tune.facts import Watch
from transformer_core.tune.source import Source
from transformer_core.tune.techniques.technique import Technique

KERNELS = ("flash", "mem_efficient", "cudnn", "math")
"""As in ``torch.backends.cuda.enable_<kernel>_sdp``; the switches work for CPUs too."""


class AttentionKernel(Technique):
    group = "attention"
    kernel: ClassVar[str]

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if not facts["counts"].get("scaled_dot_product_attention"):
            return "the script does not call scaled_dot_product_attention"
        if facts["device"] == "cpu" and self.kernel != "math":
            known = {"flash": "torch's first choice on CPUs already"}
            return known.get(self.kernel, "a kernel for GPUs")
        return None

    def prepare(self, watch: Watch) -> None:
        for kernel in KERNELS:
            getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(kernel == self.kernel)

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        others = [kernel for kernel in KERNELS if kernel != self.kernel]
        return source.after_imports([f"torch.backends.cuda.enable_{k}_sdp(False)" for k in others])

    def lines(self, facts: dict[str, Any]) -> list[str]:
        others = ", ".join(f"enable_{k}_sdp(False)" for k in KERNELS if k != self.kernel)
        return [f"Begin with torch.backends.cuda's {others}."]


class Flash(AttentionKernel):
    name, kernel = "sdpa_flash", "flash"
    words = "FlashAttention for all attention"


class MemoryEfficient(AttentionKernel):
    name, kernel = "sdpa_mem_efficient", "mem_efficient"
    words = "the memory-efficient kernel for all attention"


class Cudnn(AttentionKernel):
    name, kernel = "sdpa_cudnn", "cudnn"
    words = "cuDNN's kernel for all attention"


class Math(AttentionKernel):
    name, kernel = "sdpa_math", "math"
    words = "written-out attention in place of fused kernels"
