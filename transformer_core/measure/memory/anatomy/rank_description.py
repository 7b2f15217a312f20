"""What the steps of a rank, followed and not, say of the memory of its devices."""

from typing import Any

from schemas.results import BytesPerParameter, DeviceAccount, Milestone, Parts, RankAnatomy
from transformer_core.measure.memory.anatomy.followed_training import Followed, Training, Unfollowed
from transformer_core.measure.memory.anatomy.milestones import Milestones
from transformer_core.measure.memory.predicted.heaviest_batch import largest_shape

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
    """What remains to be said of a device that could not be followed."""
    unknown = ("anatomy", "at_peak", "residual_bytes", "saved_tensor_bytes", "bytes_per_parameter")
    peak = seen["peak"].tensor_bytes
    return dict.fromkeys(unknown) | {"peak_tensor_bytes": peak, "timeline": []}


def _taken_apart(found: Followed, parameters: int) -> dict[str, Any]:
    """What the followed steps say of a device."""
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
    """NVML's number after the last step, divided up; None where NVML tells nothing."""
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
    """What this process has on the device beside torch's allocator: by NVML for the process, else
    for the device without what others had there at the start."""
    used, reserved = milestone.process_bytes, milestone.reserved_bytes
    if used is None and milestone.device_bytes is not None and start.device_bytes is not None:
        used = milestone.device_bytes - start.device_bytes
    return None if used is None or reserved is None else used - reserved
