"""The memory of a variant by purpose, in each of its processes.

It trains a few steps on the batch that needs most memory, twice. The first time nothing follows
them, and the memory of process and device is read at every milestone. The second time every tensor
is followed, which says what the memory is for.
"""

import gc
import json
from typing import Any

import torch
import torch.distributed as dist

from schemas.results import BytesPerParameter, DeviceAccount, Milestone, Parts, RankAnatomy
from transformer_core.common.files import write_text
from transformer_core.common.progress import log
from transformer_core.data.sharding.training_shards import open_training_shards
from transformer_core.measure.followed_training import (
    Followed,
    Training,
    Unfollowed,
    followed,
    unfollowed,
)
from transformer_core.measure.heaviest_batch import largest_shape
from transformer_core.measure.memory_anatomy import AnatomyOrder, rank_file
from transformer_core.observe.milestones import Milestones, first_kernel
from transformer_core.run.program import Program


def work(order: AnatomyOrder, program: Program) -> None:
    """Measure, and write the file of this rank."""
    milestones = Milestones()
    spec = order.spec
    process = program.process
    if process.is_main:
        log.info("%s: memory of %d steps", spec.variant, order.steps)
    devices = [process.device]
    if (
        spec.parallel.one_process
        and spec.machine.devices_per_node > 1
        and process.device.type == "cuda"
    ):
        devices = [torch.device("cuda", i) for i in range(spec.machine.devices_per_node)]
    # Imports stay: without scanning them again, milestones take a tenth of the time.
    gc.freeze()
    milestones.begin(devices)
    for device in devices:
        first_kernel(device)
    milestones.take("first_kernel")
    shards = open_training_shards(order.data, nearest=False)
    training = Training(spec, process, shards.vocabulary, shards.stores, order.steps)
    plain = unfollowed(training, milestones)
    foreign = milestones.foreign()
    gc.collect()
    if process.device.type == "cuda":
        torch.cuda.empty_cache()
    # The replicas of DataParallel run in threads of their own, where nothing follows them.
    found = followed(training) if len(devices) == 1 else None
    record = {
        "topology": plain.topology.model_dump(mode="json"),
        "parameters": plain.parameters,
        "ranks": [r.model_dump(mode="json") for r in describe(training, milestones, plain, found)],
        "decoding": found and found.decoding and found.decoding.model_dump(mode="json"),
        "foreign": [process.model_dump(mode="json") for process in foreign],
    }
    write_text(order.output / rank_file(process.rank), json.dumps(record))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


TIMELINE_POINTS = 160


def describe(
    training: Training, milestones: Milestones, plain: Unfollowed, found: Followed | None
) -> list[RankAnatomy]:
    """The records of the devices of this rank."""
    return [
        RankAnatomy(
            rank=training.process.rank,
            device=str(device) if device.type == "cuda" else "cpu",
            batch=largest_shape(plain.batch),
            milestones=_with_tensors(seen, found),
            device_account=account(seen),
            **(_untaken(seen) if found is None else _taken_apart(found, plain.parameters)),
        )
        for device, seen in milestones.found.items()
    ]


def _untaken(seen: dict[str, Milestone]) -> dict[str, Any]:
    """The remaining fields for a device that could not be followed."""
    unknown = ("anatomy", "at_peak", "residual_bytes", "saved_tensor_bytes", "bytes_per_parameter")
    peak = seen["peak"].tensor_bytes
    return dict.fromkeys(unknown) | {"peak_tensor_bytes": peak, "timeline": []}


def _taken_apart(found: Followed, parameters: int) -> dict[str, Any]:
    """The fields that the followed steps give for a device."""
    step = found.step
    return {
        "anatomy": step.largest,
        "at_peak": step.at_peak,
        "peak_tensor_bytes": found.peak_bytes,
        "residual_bytes": found.peak_bytes - step.at_peak.total_bytes,
        "saved_tensor_bytes": step.saved_bytes,
        "bytes_per_parameter": per_parameter(step.largest, parameters),
        "timeline": step.timeline(TIMELINE_POINTS),
    }


def _with_tensors(seen: dict[str, Milestone], found: Followed | None) -> list[Milestone]:
    """The milestones with what the followed steps counted, where nothing else did."""
    if found is None:
        return list(seen.values())
    counted = found.tensor_bytes | {"peak": found.peak_bytes}
    return [
        milestone.model_copy(update={"tensor_bytes": counted.get(name)})
        if milestone.tensor_bytes is None
        else milestone
        for name, milestone in seen.items()
    ]


def per_parameter(parts: Parts, parameters: int) -> BytesPerParameter:
    """Parts over the parameters of the whole model."""
    state = ("weights", "master_weights", "gradients", "optimizer")
    values = {name: getattr(parts, f"{name}_bytes") / parameters for name in (*state, "buckets")}
    return BytesPerParameter(**values, model_state=sum(values[name] for name in state))


def account(milestones: dict[str, Milestone]) -> DeviceAccount | None:
    """NVML's number after the last step by purpose; None where NVML reports nothing."""
    steady, peak = milestones["steady"], milestones["peak"].tensor_bytes
    moments = ("first_kernel", "weights", "wrapped", "steady")
    outside = [_outside(milestones[moment], milestones["start"]) for moment in moments]
    known = [value for value in outside if value is not None]
    if len(known) < len(moments) or steady.reserved_bytes is None or peak is None:
        return None
    context, weights, wrapped, last = known
    library = max(0, wrapped - weights)
    return DeviceAccount(
        nvml_bytes=last + steady.reserved_bytes,
        context_bytes=context,
        library_bytes=library,
        slack_bytes=steady.reserved_bytes - peak,
        tensor_bytes=peak,
        residual_bytes=last - context - library,
    )


def _outside(milestone: Milestone, start: Milestone) -> int | None:
    """Bytes of this process on the device outside torch's allocator: from NVML for the process,
    else for the device minus what others held there at the start."""
    used, reserved = milestone.process_bytes, milestone.reserved_bytes
    if used is None and milestone.device_bytes is not None and start.device_bytes is not None:
        used = milestone.device_bytes - start.device_bytes
    return None if used is None or reserved is None else used - reserved
