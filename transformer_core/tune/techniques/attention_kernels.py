"""One kernel for all calls of torch's ``scaled_dot_product_attention``.

torch takes the first that serves a call, in an order of its own (PyTorch,
``torch.nn.attention.sdpa_kernel``). Calls that the chosen kernel cannot serve fail, and the technique
is then unsupported.
"""

from typing import TYPE_CHECKING, Any

from transformer_core.tune.techniques.technique import Technique

if TYPE_CHECKING:
    from transformer_core.tune.facts import Watch
    from transformer_core.tune.source import Source

KERNELS = ("flash", "mem_efficient", "cudnn", "math")
"""As in ``torch.backends.cuda.enable_<kernel>_sdp``; the switches hold for CPUs too."""


class AttentionKernel(Technique):
    group = "attention"

    def __init__(self, kernel: str, words: str) -> None:
        self.kernel = kernel
        self.name = f"sdpa_{kernel}"  # type: ignore[misc]
        self.words = words  # type: ignore[misc]

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if not facts["counts"].get("scaled_dot_product_attention"):
            return "the script does not call scaled_dot_product_attention"
        if facts["device"] == "cpu" and self.kernel != "math":
            known = {"flash": "torch's first choice on CPUs already"}
            return known.get(self.kernel, "a kernel for GPUs")
        return None

    def prepare(self, watch: "Watch") -> None:
        import torch

        for kernel in KERNELS:
            getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(kernel == self.kernel)

    def edit(self, source: "Source", facts: dict[str, Any]) -> bool:
        others = [kernel for kernel in KERNELS if kernel != self.kernel]
        return source.after_imports([f"torch.backends.cuda.enable_{k}_sdp(False)" for k in others])

    def lines(self, facts: dict[str, Any]) -> list[str]:
        others = ", ".join(f"enable_{k}_sdp(False)" for k in KERNELS if k != self.kernel)
        return [f"Begin with torch.backends.cuda's {others}."]


ALL = [
    AttentionKernel("flash", "FlashAttention for all attention"),
    AttentionKernel("mem_efficient", "the memory-efficient kernel for all attention"),
    AttentionKernel("cudnn", "cuDNN's kernel for all attention"),
    AttentionKernel("math", "written-out attention in place of fused kernels"),
]
