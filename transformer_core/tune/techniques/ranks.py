"""Ranks and micro-batches: options of DistributedDataParallel in a script whose ranks use it, and the
batch of a factory divided among devices or into parts.

PyTorch, ``torch.nn.parallel.DistributedDataParallel``; Li et al., PyTorch Distributed (arXiv
2006.15704).
"""

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from transformer_core.parallel.topology import fsdp_fault
from transformer_core.tune.boundaries import replacing
from transformer_core.tune.facts import Watch
from transformer_core.tune.source import Source
from transformer_core.tune.techniques.technique import Technique


class DdpOption(Technique):
    """An argument of DistributedDataParallel, if the script does not set it. Buckets decide the order
    in which ranks sum gradients."""

    option: ClassVar[str]
    value: ClassVar[Any] = True
    idle = "the script wrapped no module"
    advice = "Give DistributedDataParallel {self.option}={self.value}."

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if not facts["ddp"]:
            return "the script uses no DistributedDataParallel"
        if all(self.option in given for given in facts["ddp"]):
            return f"the script sets {self.option} already"
        return None

    def prepare(self, watch: Watch) -> None:
        @replacing(DistributedDataParallel, "__init__")
        def init(original: Any, made: Any, *args: Any, **kwargs: Any) -> None:
            if self.option not in kwargs:
                kwargs[self.option] = self.value
                self.applied += 1
            original(made, *args, **kwargs)

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        names = ("DistributedDataParallel", "DDP")
        return source.keyword("ddp", names, {self.option: str(self.value)})


class StaticGraph(DdpOption):
    name = "ddp_static_graph"
    words = "DistributedDataParallel told that its graph never changes"
    group = "ddp graph"  # The graph does change where some micro-batches send no gradients.
    option = "static_graph"


class BucketView(DdpOption):
    name = "ddp_bucket_view"
    words = "gradients kept in the buckets in which ranks send them"
    group = "ddp gradients"
    option = "gradient_as_bucket_view"


class LargeBuckets(DdpOption):
    name = "ddp_buckets_100mb"
    words = "buckets of 100 MB instead of 25"
    group = "ddp buckets"
    option = "bucket_cap_mb"
    value = 100


class NoSync(Technique):
    """Only the last micro-batch of a step sends gradients."""

    name = "ddp_no_sync"
    words = "gradients sent once a step, not with every micro-batch"
    group = "ddp graph"
    advice = "Run all micro-batches of a step but the last within model.no_sync()."
    idle = "the script sends gradients once a step already"
    _calls = 0

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if not facts["ddp"]:
            return "the script uses no DistributedDataParallel"
        return "a step has one backward pass" if facts["passes"] < 2 else None

    def module(self, module: nn.Module) -> None:
        for part in module.modules():
            if isinstance(part, DistributedDataParallel):
                part.register_forward_pre_hook(self._before_forward)

    def boundary(self) -> None:
        self._calls = 0

    def _before_forward(self, module: Any, inputs: Any) -> None:
        if not (module.training and torch.is_grad_enabled()):
            return
        self._calls += 1
        last = self._calls >= self.facts["passes"]
        self.applied += module.require_backward_grad_sync and not last
        module.require_backward_grad_sync = last


class Ddp(Technique):
    name = "ddp"
    words = "DistributedDataParallel over all devices"
    group = "devices"
    advice = (
        "Start with torchrun --nproc-per-node=N, join by torch.distributed.init_process_group(), wrap "
        "the model in torch.nn.parallel.DistributedDataParallel, and let each rank take its own rows "
        "of a batch."
    )
    settings: ClassVar[dict[str, Any]] = {"over": "ddp"}
    divides = True

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["devices"] < 2:
            return f"needs several devices: machine.devices_per_node is {facts['devices']}"
        return None


class DdpFp16Messages(Ddp):
    name = "ddp_fp16_messages"
    words = "DistributedDataParallel over all devices, gradients sent in 16 bits"
    settings: ClassVar[dict[str, Any]] = {"over": "ddp_fp16_messages"}
    rounding = "tf32"  # float16 has as many bits of precision as TensorFloat-32.
    usual = False
    advice = (
        f"{Ddp.advice} Register torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_hook "
        "with the wrapped model."
    )


class Fsdp(Ddp):
    name = "fsdp"
    words = "parameters and optimizer state in shards over all devices (FSDP2)"
    advice = (
        "Start with torchrun, and call torch.distributed.fsdp.fully_shard for each layer, then "
        "for the model, before the optimizer is made."
    )
    settings: ClassVar[dict[str, Any]] = {"over": "fsdp"}

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        return super().obstacle(facts) or fsdp_fault(facts["device"])


class TwoMicroBatches(Technique):
    name = "accumulation_2"
    words = "two micro-batches a step"
    group = "micro-batches"
    advice = (
        "Divide each batch into two, and call (loss / 2).backward() for each before "
        "optimizer.step()."
    )
    settings: ClassVar[dict[str, Any]] = {"micro_batches": 2}
    divides = True
    usual = False
