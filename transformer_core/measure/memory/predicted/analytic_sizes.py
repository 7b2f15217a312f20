"""What DDP and an 8-bit optimizer hold in memory, for they cannot work on fake tensors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from schemas.config.parallel import Ddp
from schemas.config.training import Accumulation
from transformer_core.parallel.messages import (
    MIB,
    buckets,
    copy_back,
    flatten,
    gradients,
)
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.topology import Process

_BLOCK, _SMALL = 256, 4096
"""Elements that share a scale, and elements below which moments stay in 32 bits (bitsandbytes)."""


class ExpectedDdp(Strategy):
    """The memory of DistributedDataParallel without its reducer.

    Buckets exist all the time. Gradients are copied into them, or are views into them. A
    compression hook copies each full bucket once more. PowerSGD keeps the errors of all buckets,
    and copies a full one.
    """

    def __init__(self, spec: Ddp, process: Process, accumulation: Accumulation) -> None:
        super().__init__(process)
        self.spec = spec
        self.every = accumulation.synchronise == "every"
        self.parameters: list[nn.Parameter] = []
        self.kept: list[Tensor] = []
        self.reduces = False

    def wrap(self, module: nn.Module) -> nn.Module:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        hook = self.spec.hook
        for group in buckets(self.parameters[::-1], self.spec.bucket_mb * MIB):
            bucket = flatten(group)
            self.kept.append(bucket)
            if hook is not None and hook.keeps_errors:
                self.kept.append(torch.zeros_like(bucket))
            parts = bucket.split([parameter.numel() for parameter in group])
            for parameter, part in zip(group, parts, strict=True):
                last = bucket if parameter is group[-1] else None
                parameter.register_post_accumulate_grad_hook(partial(self._reduce, part, last))
        return module

    def sync_context(self, last: bool) -> Any:
        self.reduces = self.spec.overlap and (last or self.every)
        return super().sync_context(last)

    def reduce_gradients(self) -> None:
        if self.spec.overlap:
            return
        for group in buckets(gradients(self.parameters)[::-1], self.spec.bucket_mb * MIB):
            flat = flatten(group)
            dist.all_reduce(flat)
            copy_back(flat, group)

    def _reduce(self, part: Tensor, full: Tensor | None, parameter: nn.Parameter) -> None:
        if not self.reduces:
            return
        if self.spec.bucket_view:
            parameter.grad = part.view_as(parameter)
        hook = self.spec.hook
        if full is not None and hook is not None and hook.rounds_to is not None:
            full.to(torch.float16)
        if full is not None and hook is not None and hook.keeps_errors:
            full.clone()


class ExpectedEightBit(Optimizer):
    """The memory of AdamW with 8-bit moments: two bytes a parameter and two scales a block."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Make the state, and change nothing."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if state or parameter.grad is None:
                    continue
                for moment in ("1", "2"):
                    if parameter.numel() < _SMALL:
                        state[f"state{moment}"] = torch.zeros_like(parameter)
                        continue
                    like = partial(parameter.new_zeros, dtype=torch.float32)
                    state[f"state{moment}"] = torch.zeros_like(parameter, dtype=torch.uint8)
                    state[f"absmax{moment}"] = like(-(-parameter.numel() // _BLOCK))
                    state[f"qmap{moment}"] = like(256)
