"""Memory layout and algorithms of convolutions."""

from typing import Any

import torch
from torch import nn

from transformer_core.tune.facts import Watch
from transformer_core.tune.source import Source
from transformer_core.tune.techniques.technique import Technique


class ChannelsLast(Technique):
    name = "channels_last"
    words = "channels last in memory (NHWC)"
    group = "layout"
    advice = "Call model.to(memory_format=torch.channels_last) before the optimizer is made."
    rounding = "float32"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        return None if facts["convolutions"] else "the model has no convolution"

    def module(self, module: nn.Module) -> None:
        # A module may override `to` with a method that takes only a device, as timm's tasks do.
        nn.Module.to(module, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        return source.before_loop(["MODEL.to(memory_format=torch.channels_last)"])


class CudnnBenchmark(Technique):
    name = "cudnn_benchmark"
    words = "cuDNN's fastest algorithm for each shape"
    group = "algorithms"
    rounding = "float32"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] != "cuda":
            return "cuDNN needs a GPU"
        return None if facts["convolutions"] else "the model has no convolution"

    def prepare(self, watch: Watch) -> None:
        torch.backends.cudnn.benchmark = True

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        return source.after_imports(["torch.backends.cudnn.benchmark = True"])
