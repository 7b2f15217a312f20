"""Kernels of attention, convolutions and optimizers that torch chooses otherwise."""

from typing import Any, ClassVar

import torch
from torch import nn

from transformer_core.tune.boundaries import replacing
from transformer_core.tune.facts import Watch
from transformer_core.tune.source import Source
from transformer_core.tune.techniques.technique import Technique

KERNELS = ("flash", "mem_efficient", "cudnn", "math")
"""As in ``torch.backends.cuda.enable_<kernel>_sdp``; the switches work for CPUs too."""


class AttentionKernel(Technique):
    """One kernel for all calls of torch's ``scaled_dot_product_attention``.

    By default torch takes the first kernel that supports a call (PyTorch,
    ``torch.nn.attention.sdpa_kernel``). Calls that the chosen kernel does not support fail: the
    technique is then unsupported.
    """

    group = "attention"
    kernel: ClassVar[str]

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if not facts["counts"].get("scaled_dot_product_attention"):
            return "the script does not call scaled_dot_product_attention"
        if facts["device"] == "cpu" and self.kernel == "flash":
            return "torch's first choice on CPUs already"
        return "a kernel for GPUs" if facts["device"] == "cpu" and self.kernel != "math" else None

    def prepare(self, watch: Watch) -> None:
        for kernel in KERNELS:
            getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(kernel == self.kernel)

    def calls(self) -> list[str]:
        """Calls of torch.backends.cuda that switch the other kernels off."""
        return [f"enable_{kernel}_sdp(False)" for kernel in KERNELS if kernel != self.kernel]

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        return source.after_imports([f"torch.backends.cuda.{call}" for call in self.calls()])

    def lines(self, facts: dict[str, Any]) -> list[str]:
        return [f"Begin with torch.backends.cuda's {', '.join(self.calls())}."]


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


class ChannelsLast(Technique):
    name = "channels_last"
    words = "channels last in memory (NHWC)"
    group = "layout"
    advice = "Call model.to(memory_format=torch.channels_last) before the optimizer is made."

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if 2 not in facts["dimensions"]:
            return "the model has no convolution of images"
        if 3 in facts["dimensions"]:
            return "the model also has convolutions of volumes, for which torch has another layout"
        return None

    def module(self, module: nn.Module) -> None:
        # A module may override `to` with a method that takes only a device, as timm's tasks do.
        nn.Module.to(module, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        return source.before_loop(["MODEL.to(memory_format=torch.channels_last)"])


class CudnnBenchmark(Technique):
    name = "cudnn_benchmark"
    words = "cuDNN's fastest algorithm for each shape"
    group = "algorithms"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] != "cuda":
            return "cuDNN needs a GPU"
        return None if facts["dimensions"] else "the model has no convolution"

    def prepare(self, watch: Watch) -> None:
        torch.backends.cudnn.benchmark = True

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        return source.after_imports(["torch.backends.cudnn.benchmark = True"])


OPTIMIZERS = {"Adam", "AdamW", "SGD", "Adagrad"}
OPTIONS = ("fused", "foreach")  # if a script sets one of them, to any value, its choice is kept


class FusedOptimizer(Technique):
    name = "fused_optimizer"
    words = "torch's fused kernel for the update"
    group = "update"
    option = "fused"
    idle = "no optimizer could be made fused"
    advice = "Give the optimizer {self.option}=True."

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        used = set(facts["optimizers"])
        if not used & OPTIMIZERS:
            found = ", ".join(sorted(used)) or "no optimizer of torch"
            known = ", ".join(sorted(OPTIMIZERS))
            return f"the script uses {found}; torch has {self.option} kernels for {known}"
        if self.option == "fused" and (formats := [f for f in facts["formats"] if "complex" in f]):
            return f"the model has {formats[0]} weights, for which torch has no fused kernels"
        if all(group.get(self.option) for group in facts["groups"]):
            return f"the optimizer is {self.option} already"
        if all(any(group.get(o) is not None for o in OPTIONS) for group in facts["groups"]):
            return "the script chooses the kernels of its optimizer itself"
        return None

    def prepare(self, watch: Watch) -> None:
        for name in OPTIMIZERS:
            replacing(getattr(torch.optim, name), "__init__")(self._made)

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        names = [name for name in facts["optimizers"] if name in OPTIMIZERS]
        return source.keyword("optimizer", names, {self.option: "True"}, instead=OPTIONS)

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
        return "torch's default on GPUs" if facts["device"] == "cuda" else super().obstacle(facts)
