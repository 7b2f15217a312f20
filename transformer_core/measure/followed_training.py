"""A few training steps on the batch that needs most memory: undisturbed, or with every tensor
tracked."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from schemas.config.run_spec import RunSpec
from schemas.config.task import LanguageModel
from schemas.results import DecodingMemory, Topology
from schemas.results.memory import MilestoneName
from transformer_core.data.batching.feeding import GlobalBatch, evaluation_batches
from transformer_core.data.sharding.shard_store import PairStore
from transformer_core.measure.heaviest_batch import heaviest_batch
from transformer_core.models.decoding import beam_search
from transformer_core.observe.allocations import CpuAllocations, CudaAllocations
from transformer_core.observe.followed_step import (
    Interval,
    StepMemory,
    StorageTracker,
    followed_step,
    watched_step,
)
from transformer_core.observe.milestones import Milestones
from transformer_core.parallel.topology import Process
from transformer_core.training.assemble import Setup, assemble
from transformer_core.training.translate import EXTRA_TOKENS

LAST_STEP, END = "last step", "steady"
DECODED_TOKENS = 32
"""Longest translation: models without a cache compute the whole prefix for every token."""
MOMENTS: dict[str, MilestoneName] = {
    "forward": "first_forward",
    "backward": "first_backward",
    "update": "first_step",
}
"""Milestones by the moments of an optimizer step."""


@dataclass(frozen=True)
class Training:
    """The run spec, process and trainer of a followed training."""

    spec: RunSpec
    process: Process
    vocabulary: int
    stores: tuple[PairStore, PairStore]
    steps: int

    def assemble(self, watch: Callable[[str], None]) -> Setup:
        """A training from the start."""
        setup = assemble(self.spec, self.process, self.vocabulary, *self.stores, watch)
        setup.module.train()
        return setup

    def batch(self, setup: Setup) -> GlobalBatch:
        """The batch that needs most memory, on the devices of ``setup``."""
        _, shares = setup.strategy.share
        index, _ = heaviest_batch(self.spec, self.stores[0], self.vocabulary, shares)
        with contextlib.closing(setup.strategy.batches(setup.feed, 0, index)) as batches:
            (batch,) = islice(batches, 1)
        return batch


@dataclass(frozen=True)
class Unfollowed:
    """The record of the undisturbed steps, besides the milestones."""

    batch: GlobalBatch
    topology: Topology
    parameters: int


@dataclass(frozen=True)
class Followed:
    """The record of a rank's followed steps."""

    step: StepMemory
    peak_bytes: int
    tensor_bytes: dict[str, int | None]
    """Bytes that torch's CPU allocator had handed out at milestones; empty on CUDA, which counts
    too."""
    decoding: DecodingMemory | None


def unfollowed(training: Training, milestones: Milestones) -> Unfollowed:
    """Runs the undisturbed steps, and records the milestones."""

    def take(moment: str) -> None:
        milestones.take(MOMENTS[moment])

    setup = training.assemble(lambda moment: milestones.take("weights"))
    # The first message: libraries allocate their buffers on first use.
    setup.strategy.sum(torch.zeros(1))
    milestones.take("wrapped")
    batch = training.batch(setup)
    for _ in range(training.steps):
        watched_step(setup, batch, take)
        milestones.take("first_step")  # a rank that only lends its device updates nothing
    milestones.take("steady")
    milestones.peak()
    setup.strategy.synchronise()
    return Unfollowed(batch, setup.strategy.topology(), setup.parameters)


def followed(training: Training, translate: bool = True) -> Followed:
    """Runs the same steps with every tensor tracked, and analyses the last one. Then, on request,
    translates a batch."""
    device = training.process.device
    counted: CudaAllocations | CpuAllocations
    deaths: list[tuple[int, int]] = []
    counted = CudaAllocations(device) if device.type == "cuda" else CpuAllocations(deaths)
    with StorageTracker(device.type, deaths if device.type == "cpu" else None) as tracker:
        with counted, _callbacks_here(device):

            def mark(moment: str) -> None:
                counted.mark(MOMENTS.get(moment, moment))

            setup = training.assemble(mark)
            batch = training.batch(setup)
            for _ in range(training.steps - 1):
                followed_step(setup, batch, tracker, mark)
                mark("first_step")
            counted.mark(LAST_STEP)
            step = followed_step(setup, batch, tracker)
            counted.mark(END)
        decoding = decode(training, setup, tracker) if translate else None
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
    """On a CPU, runs the callbacks of a message (as in DDP's hooks) in the thread that requests
    them, once the message has arrived. Otherwise gloo's threads would run them, where nothing is
    tracked."""
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
def decode(training: Training, setup: Setup, tracker: StorageTracker) -> DecodingMemory | None:
    """Translate one batch of the longest validation sentences, or go on with texts, on the main
    rank, as the evaluation does, up to a number of tokens; None elsewhere, and where the weights
    are in shards."""
    settings = training.spec.evaluation
    if not training.process.is_main or training.spec.parallel.sharded:
        return None
    batches = evaluation_batches(training.stores[1], pairs_per_batch=settings.batch_pairs)
    _, batch = next(batches)
    source = batch.source.to(setup.device)
    task = training.spec.task
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
