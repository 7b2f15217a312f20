"""The memory of a variant by purpose, in each of its processes.

It trains a few steps on the batch that needs the most memory, twice. The first time it only reads
the memory of process and device at every milestone. The second time it tracks every tensor, which
tells what the memory is for.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from pydantic_core import to_json

from schemas.config.run_spec import LanguageModel
from schemas.config.training import EXTRA_TOKENS, Evaluation
from schemas.results import (
    BatchShape,
    BytesPerParameter,
    DecodingMemory,
    DeviceAccount,
    Milestone,
    Parts,
    RankAnatomy,
    Topology,
)
from schemas.results.memory import MilestoneName
from transformer_core.common.files import write_text
from transformer_core.common.progress import log
from transformer_core.data.batching.feeding import GlobalBatch, evaluation_batches
from transformer_core.data.sharding.shard_store import open_training_shards
from transformer_core.measure.heaviest_batch import heaviest_batch, largest_shape
from transformer_core.measure.memory_anatomy import AnatomyOrder
from transformer_core.models.decoding import beam_search
from transformer_core.observe.followed_step import (
    Interval,
    StepMemory,
    StorageTracker,
    followed_step,
    watched_step,
)
from transformer_core.observe.milestones import (
    CpuAllocations,
    CudaAllocations,
    Milestones,
    first_kernel,
)
from transformer_core.observe.profile_job import rank_file
from transformer_core.run.worker import Program
from transformer_core.training.assemble import Setup

LAST_STEP, END = "last step", "steady"
DECODED_TOKENS = 32
"""Longest translation: models without a cache compute the whole prefix for every token."""
MOMENTS: dict[str, MilestoneName] = {
    "forward": "first_forward",
    "backward": "first_backward",
    "update": "first_step",
}
"""Milestones by the moments of an optimizer step."""


def batch_of(setup: Setup) -> GlobalBatch:
    """The batch that needs the most memory, on the devices of ``setup``."""
    _, shares = setup.strategy.share
    store = setup.train_store
    index, _ = heaviest_batch(setup.spec, store, store.manifest.vocabulary, shares)
    with contextlib.closing(setup.strategy.batches(setup.feed, 0, index)) as batches:
        return next(batches)


@dataclass(frozen=True)
class Unfollowed:
    """The record of the undisturbed steps, except the milestones."""

    batch: BatchShape
    topology: Topology
    parameters: int


@dataclass(frozen=True)
class Followed:
    """The record of a rank's tracked steps."""

    step: StepMemory
    peak_bytes: int
    tensor_bytes: dict[str, int | None]
    """Bytes allocated by torch's CPU allocator at milestones; null on CUDA, whose milestones have
    them already."""
    decoding: DecodingMemory | None


def unfollowed(program: Program, steps: int, milestones: Milestones) -> Unfollowed:
    """Trains the steps undisturbed, and reads the memory at ``milestones``."""

    def take(moment: str) -> None:
        milestones.take(MOMENTS[moment])

    setup = program.assemble(watch=lambda moment: milestones.take("weights"))
    setup.module.train()
    # A first message, since libraries allocate their buffers on first use.
    setup.strategy.sum(torch.zeros(1))
    milestones.take("wrapped")
    batch = batch_of(setup)
    for _ in range(steps):
        watched_step(setup, batch, take)
        milestones.take("first_step")  # for ranks that only lend their device, and update nothing
    milestones.take("steady")
    milestones.peak()
    setup.strategy.synchronise()
    return Unfollowed(largest_shape(batch), setup.strategy.topology(), setup.parameters)


def followed(program: Program, steps: int, evaluation: Evaluation) -> Followed:
    """Trains the same steps with every tensor tracked, and analyses the last one. Then translates a
    batch."""
    device = program.process.device
    counted = CudaAllocations(device) if device.type == "cuda" else CpuAllocations()
    with StorageTracker(device.type) as tracker:
        with counted, _callbacks_here(device):

            def mark(moment: str) -> None:
                counted.mark(MOMENTS.get(moment, moment))

            setup = program.assemble(watch=mark)
            setup.module.train()
            batch = batch_of(setup)
            for _ in range(steps - 1):
                followed_step(setup, batch, tracker, mark)
                mark("first_step")
            counted.mark(LAST_STEP)
            step = followed_step(setup, batch, tracker)
            counted.mark(END)
        decoding = decode(setup, tracker, evaluation)
    setup.strategy.synchronise()
    return Followed(
        step=step,
        peak_bytes=counted.peak(LAST_STEP, END),
        tensor_bytes={
            name: counted.at(name) for name in ("weights", "wrapped", *MOMENTS.values(), "steady")
        },
        decoding=decoding,
    )


@contextlib.contextmanager
def _callbacks_here(device: torch.device) -> Iterator[None]:
    """On a CPU, runs the callbacks of messages (as in DDP's hooks) in the requesting thread, after
    the message has arrived. Otherwise gloo's threads would run them untracked."""
    if device.type != "cpu":
        yield
        return
    then = torch._C.Future.then

    def waiting(future: torch._C.Future, callback: Callable[..., Any]) -> Any:
        future.wait()
        return then(future, callback)

    torch._C.Future.then = waiting  # type: ignore[assignment]
    try:
        yield
    finally:
        torch._C.Future.then = then  # type: ignore[method-assign]


@torch.inference_mode()
def decode(setup: Setup, tracker: StorageTracker, settings: Evaluation) -> DecodingMemory | None:
    """On the main rank, translates one batch of the longest validation sentences, or continues
    texts, as the evaluation does, up to a number of tokens. None on other ranks, for sharded
    weights, and if the evaluation does none of this."""
    if not setup.process.is_main or setup.spec.parallel.sharded or not settings.max_pairs:
        return None
    batches = evaluation_batches(setup.validation_store, pairs_per_batch=settings.batch_pairs)
    _, batch = next(batches)
    source = batch.source.to(setup.device)
    task = setup.spec.task
    most = task.continuation if isinstance(task, LanguageModel) else source.size(1) + EXTRA_TOKENS
    length = min(most, DECODED_TOKENS)
    setup.optimizer.zero_grad(set_to_none=True)
    setup.model.eval()
    begin = tracker.operations
    with setup.precision.autocast():
        if isinstance(task, LanguageModel):
            setup.model.generate(batch.target_input[:, : task.prompt].tolist(), length)  # type: ignore[operator]
        else:
            beam_search(setup.model, source, settings.beam_size, settings.length_penalty, length)
    setup.model.train()
    total = StepMemory(tracker, [Interval("forward", begin, tracker.operations)]).total
    return DecodingMemory(
        sentences=len(source),
        beam_size=1 if isinstance(task, LanguageModel) else settings.beam_size,
        length=length,
        weights_bytes=sum(p.nbytes for p in setup.model.parameters()),
        functionality_bytes=int(total.max() - total[0]),
    )


def work(order: AnatomyOrder, program: Program) -> None:
    milestones = Milestones()
    spec = order.spec
    process = program.process
    if process.is_main:
        log.info("%s: memory of %d steps", spec.variant, order.steps)
    devices = [process.device]
    if spec.parallel.one_process and process.device.type == "cuda":
        devices = [torch.device("cuda", i) for i in range(spec.machine.devices_per_node)]
    # Exempts imports from garbage collection: milestones then take a tenth of the time.
    gc.freeze()
    milestones.begin(devices)
    for device in devices:
        first_kernel(device)
    milestones.take("first_kernel")
    program.stores = open_training_shards(order.data, nearest=False)
    plain = unfollowed(program, order.steps, milestones)
    foreign = milestones.foreign()
    gc.collect()
    if process.device.type == "cuda":
        torch.cuda.empty_cache()
    # DataParallel's replicas run in other threads, where they cannot be tracked.
    found = followed(program, order.steps, order.evaluation) if len(devices) == 1 else None
    record = {
        "topology": plain.topology,
        "parameters": plain.parameters,
        "ranks": describe(process.rank, milestones, plain, found),
        "decoding": found and found.decoding,
        "foreign": foreign,
    }
    write_text(order.output / rank_file(process.rank), to_json(record).decode())
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


TIMELINE_POINTS = 160


def describe(
    rank: int, milestones: Milestones, plain: Unfollowed, found: Followed | None
) -> list[RankAnatomy]:
    """The record of each device of a rank; ``found`` is None if they could not be tracked."""
    names = ("anatomy", "at_peak", "residual_bytes", "bytes_per_parameter")
    known: dict[str, Any] = dict.fromkeys(names) | {"timeline": []}
    counted: dict[str, int | None] = {}
    if found is not None:
        step = found.step
        known = {
            "anatomy": step.largest,
            "at_peak": step.at_peak,
            "peak_tensor_bytes": found.peak_bytes,
            "residual_bytes": found.peak_bytes - step.at_peak.total_bytes,
            "bytes_per_parameter": per_parameter(step.largest, plain.parameters),
            "timeline": step.timeline(TIMELINE_POINTS),
        }
        counted = found.tensor_bytes | {"peak": found.peak_bytes}
    return [
        RankAnatomy(
            rank=rank,
            device=str(device) if device.type == "cuda" else "cpu",
            batch=plain.batch,
            milestones=[
                # Those without tensor bytes get the count of the tracked steps.
                one.model_copy(update={"tensor_bytes": counted.get(name)})
                if one.tensor_bytes is None
                else one
                for name, one in seen.items()
            ],
            device_account=account(seen),
            **({"peak_tensor_bytes": seen["peak"].tensor_bytes} | known),
        )
        for device, seen in milestones.found.items()
    ]


def per_parameter(parts: Parts, parameters: int) -> BytesPerParameter:
    """The parts divided by the parameters of the whole model."""
    state = ("weights", "master_weights", "gradients", "optimizer")
    values = {name: getattr(parts, f"{name}_bytes") / parameters for name in (*state, "buckets")}
    return BytesPerParameter(**values, model_state=sum(values[name] for name in state))


def account(milestones: dict[str, Milestone]) -> DeviceAccount | None:
    """NVML's number after the last step by purpose; None if NVML does not report it."""
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
    """Bytes of this process on the device outside torch's allocator: from NVML's number for the
    process, else from its number for the device, minus what others held at the start."""
    used, reserved = milestone.process_bytes, milestone.reserved_bytes
    if used is None and milestone.device_bytes is not None and start.device_bytes is not None:
        used = milestone.device_bytes - start.device_bytes
    return None if used is None or reserved is None else used - reserved
