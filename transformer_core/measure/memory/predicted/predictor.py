"""The memory that a run spec needs, without running it.

The training is put together as always and takes two steps, but on fake tensors, which have shapes
and no memory: any size takes seconds. A process group of the same size, whose messages go nowhere,
stands for the other ranks.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from schemas.config.batching import PackedRows
from schemas.config.parallel import Central, DataParallel, Ddp
from schemas.config.run_spec import RunSpec
from schemas.config.training import Fp32, Sgd
from schemas.results import BatchShape, PredictedRank
from transformer_core.data.batching.feeding import evaluation_batches
from transformer_core.data.sharding.shard_store import PairStore
from transformer_core.measure.memory.anatomy.followed_step import followed_step
from transformer_core.measure.memory.anatomy.storages import Interval, StepMemory, StorageTracker
from transformer_core.measure.memory.predicted.analytic_sizes import ExpectedDdp, ExpectedEightBit
from transformer_core.measure.memory.predicted.heaviest_batch import (
    blank_batch,
    expected_shape,
    heaviest_batch,
    largest_shape,
    longest_rows,
    shape_of,
)
from transformer_core.measure.memory.predicted.imitated_cuda import imitated_cuda
from transformer_core.models.loss import token_loss_sum
from transformer_core.models.objective import objective_of
from transformer_core.models.registry import build_model
from transformer_core.parallel.registry import build_strategy
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.topology import Process
from transformer_core.training.assemble import Trainer, equip
from transformer_core.training.precision import Autocast, ScaledAutocast, set_matmul

VALIDATION_TOKENS = 8_192
"""Tokens of a validation batch, as in ``evaluation_batches``."""


@dataclass(frozen=True)
class Shapes:
    """What a rank works on: its micro-batches of one step, and a validation batch."""

    training: list[BatchShape]
    validation: BatchShape


def shapes(
    spec: RunSpec, vocabulary: int, stores: tuple[PairStore, PairStore] | None, shares: int
) -> Shapes:
    """The heaviest batches: of the training and validation pairs, where they are there, else those
    that the settings of the corpus allow."""
    micro_batches = spec.training.accumulation.micro_batches
    if stores is None:
        return Shapes(
            [expected_shape(spec, shares * micro_batches)] * micro_batches,
            longest_rows(spec, VALIDATION_TOKENS // spec.longest),
        )
    train, validation = stores
    _, batch = heaviest_batch(spec, train, vocabulary, shares)
    _, first = next(evaluation_batches(validation))
    return Shapes([shape_of(micro) for micro in batch.micro_batches], shape_of(first))


def predict_ranks(
    spec: RunSpec,
    vocabulary: int,
    device: torch.device,
    stores: tuple[PairStore, PairStore] | None = None,
) -> tuple[list[PredictedRank], int]:
    """The memory of rank 0, and of rank 1 where the others do other work; and the parameters of the
    whole model.

    Where there is no GPU, that of a CUDA ``device`` is imitated. Unsupported where that cannot be,
    or there is nothing to train.
    """
    spec.refuse_without_meaning()
    parallel, world_size = spec.parallel, spec.world_size
    if isinstance(parallel, DataParallel):
        # The same scheme, in one process: a device is what a rank is there.
        parallel = Central(kind="central", local_loss=parallel.local_loss)
        world_size = spec.machine.devices_per_node
    spec = spec.model_copy(update={"parallel": parallel})
    central = isinstance(parallel, Central)
    shares = 1 if central else world_size
    shape = shapes(spec, vocabulary, stores, shares)
    others = [1] if central and world_size > 1 else []
    imitation: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if device.type == "cuda" and not torch.cuda.is_available():
        imitation, device = imitated_cuda(), torch.device("cpu")
        spec = _on_a_cpu(spec)
    with imitation:
        predicted = [
            _predict_rank(spec, vocabulary, Process(rank, world_size, 0, world_size, device), shape)
            for rank in [0, *others]
        ]
    return [rank for rank, _ in predicted], predicted[0][1]


def _on_a_cpu(spec: RunSpec) -> RunSpec:
    """``spec`` with products of 32 bits, which take the same memory, in place of those of a format
    that only CUDA devices have."""
    if spec.numbers.device != "cuda":
        return spec
    training = spec.training.model_copy(update={"precision": Fp32()})
    return spec.model_copy(update={"training": training})


def _predict_rank(
    spec: RunSpec, vocabulary: int, process: Process, shape: Shapes
) -> tuple[PredictedRank, int]:
    device = process.device
    packed = isinstance(spec.batching.rows, PackedRows)
    with torch.device("meta"):
        model = build_model(spec.model, vocabulary, packed)
    # It may have to look at a product, which has no numbers on fake tensors.
    set_matmul(spec.training.precision, device)
    with _silent_group(spec, process):
        strategy = _strategy(spec, process)
        with FakeTensorMode(allow_non_fake_inputs=True), StorageTracker(device.type) as tracker:
            place(model, device)
            trainer = _trainer(spec, process, strategy, model)
            trainer.module.train()
            batch = blank_batch(shape.training, device)
            for _ in range(2):
                step = followed_step(trainer, batch, tracker)
            validation = _validate(trainer, shape.validation, tracker)
    predicted = PredictedRank(
        rank=process.rank,
        batch=largest_shape(batch),
        at_peak=step.at_peak,
        anatomy=step.largest,
        training_bytes=int(step.total.max()),
        validation_bytes=int(validation.total.max()),
    )
    return predicted, trainer.parameters


@contextlib.contextmanager
def _silent_group(spec: RunSpec, process: Process) -> Iterator[None]:
    """A process group for the strategies that need one; messages in it go nowhere."""
    if spec.parallel.one_process:
        yield
        return
    dist.init_process_group(
        "fake", rank=process.rank, world_size=process.world_size, store=FakeStore()
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _strategy(spec: RunSpec, process: Process) -> Strategy:
    accumulation = spec.training.accumulation
    if isinstance(spec.parallel, Ddp):
        return ExpectedDdp(spec.parallel, process, accumulation)
    return build_strategy(spec.parallel, process, spec.machine, accumulation)


def place(model: nn.Module, device: torch.device) -> None:
    """Put fake tensors on ``device`` in place of the model's, tied ones once."""
    # The old ones stay alive meanwhile, since each is known by its address.
    placed: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is not None:
                new = nn.Parameter(torch.empty_like(old, device=device), old.requires_grad)
                module._parameters[name] = placed.setdefault(id(old), (old, new))[1]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device=device)


def _trainer(spec: RunSpec, process: Process, strategy: Strategy, model: nn.Module) -> Trainer:
    eight_bit = spec.training.optimizer.state.moment_bits == 8
    if eight_bit:
        training = spec.training.model_copy(update={"optimizer": Sgd(kind="sgd")})
        spec = spec.model_copy(update={"training": training})
    trainer = equip(spec, process, strategy, model)
    if eight_bit:
        trainer = replace(trainer, optimizer=ExpectedEightBit(trainer.module.parameters()))
    if isinstance(trainer.precision, ScaledAutocast):
        # Whether a step is skipped depends on numbers, which fake tensors have not.
        plain = Autocast(process.device.type, trainer.precision.dtype)
        trainer = replace(trainer, precision=plain)
    return trainer


@torch.no_grad()
def _validate(trainer: Trainer, shape: BatchShape, tracker: StorageTracker) -> StepMemory:
    """One validation batch, as :func:`transformer_core.training.evaluation.validation_loss` takes it,
    while gradients and optimizer state are still there."""
    trainer.model.eval()
    begin = tracker.operations
    (batch,) = blank_batch([shape], trainer.device).micro_batches
    with trainer.precision.autocast():
        logits = objective_of(trainer.spec, trainer.model).logits(batch.source, batch.target_input)
    token_loss_sum(logits, batch.target_output, 0.0)
    return StepMemory(tracker, [Interval("forward", begin, tracker.operations)])
