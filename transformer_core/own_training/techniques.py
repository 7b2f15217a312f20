"""Techniques that apply to a training without knowing its model, and how each change is judged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.base import kinds_of, merge
from schemas.config.equivalence import Statistical, Tolerance
from schemas.config.own_training import ImportedTask, Technique
from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported

_EXACT, _FEWER_BITS = Tolerance(kind="tolerance"), Statistical(kind="statistical")


@dataclass(frozen=True)
class Tried:
    """A technique: how a run spec gets it, and which certificate it needs."""

    change: dict[str, Any]
    """Settings merged into the run spec; the step looks up anything further by name."""
    equivalence: Tolerance | Statistical
    group: str
    """A training uses at most one technique of a group."""
    words: str
    """Its description, for the report."""


def _format(kind: str, words: str) -> Tried:
    return Tried({"training": {"precision": {"kind": kind}}}, _FEWER_BITS, "format", words)


def _allocator(name: str, words: str) -> Tried:
    return Tried({"machine": {"allocator": name}}, _EXACT, "allocator", words)


_MESSAGES = {"kind": "ddp", "hook": {"kind": "compress", "dtype": "fp16"}}

TECHNIQUES: Mapping[Technique, Tried] = {
    "fused_optimizer": Tried({}, _EXACT, "update", "torch's fused kernel for the update"),
    "allocator_kept": _allocator("kept", "freed memory stays with the process"),
    "allocator_huge_pages": _allocator("huge_pages", "the same, in huge pages"),
    "bf16": _format("bf16", "bfloat16 autocast"),
    "fp16": _format("fp16", "float16 autocast with a loss scale"),
    "bf16_matmul": _format("bf16_matmul", "bfloat16 within matrix products of 32 bits"),
    "tf32": _format("tf32", "TensorFloat-32 within matrix products of 32 bits"),
    "chunked_loss": Tried({}, _EXACT, "loss", "output layer and loss in chunks"),
    "accumulation_2": Tried(
        {"training": {"accumulation": {"micro_batches": 2}}},
        _EXACT,
        "micro-batches",
        "two micro-batches a step",
    ),
    "compile": Tried({}, _EXACT, "compile", "torch.compile of the module"),
    "ddp": Tried(
        {"parallel": {"kind": "ddp"}},
        _EXACT,
        "devices",
        "DistributedDataParallel over all devices",
    ),
    "ddp_fp16_messages": Tried(
        {"parallel": _MESSAGES}, _FEWER_BITS, "devices", "the same, gradients sent in 16 bits"
    ),
    "fsdp": Tried(
        {"parallel": {"kind": "fsdp"}},
        _EXACT,
        "devices",
        "parameters and state in shards (FSDP2)",
    ),
}


def plain_spec(spec: RunSpec, task: ImportedTask, devices: int = 1) -> RunSpec:
    """The user's own step: 32 bits, one device, memory as the C library gives it, and what
    ``task.applied`` names. Unsupported where that is not possible."""
    plain: dict[str, Any] = {
        "parallel": {"kind": "single"},
        "machine": {"allocator": "default"},
        "training": {"precision": {"kind": "fp32"}, "accumulation": {"micro_batches": 1}},
        "variant": "own",
    }
    bare = task.model_copy(update={"applied": ()})
    own = _laid_over(spec, plain).model_copy(update={"task": bare})
    return with_techniques(own, devices, task.applied).model_copy(update={"variant": "own"})


def with_techniques(own: RunSpec, devices: int, names: Sequence[Technique]) -> RunSpec:
    """``own`` with techniques; ``devices`` is how many the study's machine has on a host.

    Unsupported where they cannot be together, or not on this machine.
    """
    task = own.task
    assert isinstance(task, ImportedTask)
    for name in names:
        if name in task.applied:
            raise Unsupported("the step already has it: task.applied")
        same = [other for other in names if TECHNIQUES[other].group == TECHNIQUES[name].group]
        if len(same) > 1:
            raise Unsupported(f"{' and '.join(same)} exclude each other")
    if "chunked_loss" in names and task.head is None:
        raise Unsupported("needs the name of the output layer: set task.head")
    if "chunked_loss" in names and "fsdp" in names:
        raise Unsupported("the chunked loss uses the output layer after FSDP's forward pass")
    change: dict[str, Any] = {"variant": "_and_".join(names) or "own"}
    for name in names:
        change = merge(change, TECHNIQUES[name].change)
    if "parallel" in change:
        if devices < 2:
            kind = change["parallel"]["kind"]
            raise Unsupported(
                f"{kind} needs several devices: machine.devices_per_node is {devices}"
            )
        change = merge(change, {"machine": {"devices_per_node": devices}})
    applied = task.model_copy(update={"applied": (*task.applied, *names)})
    return _laid_over(own, change).model_copy(update={"task": applied})


def _laid_over(spec: RunSpec, change: dict[str, Any]) -> RunSpec:
    data = merge(spec.model_dump(mode="json"), change, kinds_of(RunSpec))
    return RunSpec.model_validate(data)


def equivalence_of(names: Sequence[Technique]) -> Tolerance | Statistical:
    """How a training with these techniques is judged: by its loosest one."""
    return next(
        (
            TECHNIQUES[n].equivalence
            for n in names
            if TECHNIQUES[n].equivalence.kind == "statistical"
        ),
        _EXACT,
    )
