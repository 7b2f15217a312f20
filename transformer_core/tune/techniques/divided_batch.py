"""The batch of a factory divided among devices or into micro-batches."""

from typing import Any, ClassVar

from transformer_core.tune.techniques.technique import Rounding, Technique


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
    needs_factory = True
    rounding: ClassVar[Rounding] = "float32"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["devices"] < 2:
            return f"needs several devices: machine.devices_per_node is {facts['devices']}"
        return None


class DdpFp16Messages(Ddp):
    name = "ddp_fp16_messages"
    words = "DistributedDataParallel over all devices, gradients sent in 16 bits"
    settings: ClassVar[dict[str, Any]] = {"over": "ddp_fp16_messages"}
    # float16 has as many bits of precision as TensorFloat-32.
    rounding: ClassVar[Rounding] = "tf32"
    usual = False

    def lines(self, facts: dict[str, Any]) -> list[str]:
        hook = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_hook"
        return [*super().lines(facts), f"Register {hook} with the wrapped model."]


class Fsdp(Ddp):
    name = "fsdp"
    words = "parameters and optimizer state in shards over all devices (FSDP2)"
    advice = (
        "Start with torchrun, and call torch.distributed.fsdp.fully_shard for each layer, then "
        "for the model, before the optimizer is made."
    )
    settings: ClassVar[dict[str, Any]] = {"over": "fsdp"}


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
    needs_factory = True
    usual = False
