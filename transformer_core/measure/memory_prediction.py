"""The memory that a run spec needs, without running it.

The training is assembled as usual. It takes a step after an update that creates the optimizer's
state, but on fake tensors, which have shapes and no memory: any size takes seconds. A fake process
group of the same size, which sends nothing, replaces the other ranks.

Without a GPU, torch cannot run a backward pass on its fake tensors. So tensors of the CPU replace
them, and the operations whose memory depends on the device are replaced by their equivalents on
CUDA: attention without its weights, dropout with one byte per element for its mask, and the
operations that CUDA's autocast computes in 32 bits (PyTorch, "Autocast Op Reference").
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer
from torch.testing._internal.distributed.fake_pg import FakeStore

from schemas.config.data import PackedRows
from schemas.config.parallel import Central, DataParallel, Ddp
from schemas.config.run_spec import RunSpec
from schemas.config.training import Accumulation, Fp32, Sgd
from schemas.results import BatchShape, PredictedRank
from transformer_core.data.batching.collate import Batch
from transformer_core.data.batching.feeding import evaluation_batches
from transformer_core.data.sharding.shard_store import PairStore
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.measure.heaviest_batch import (
    blank_batch,
    expected_shape,
    heaviest_batch,
    largest_shape,
    longest_rows,
    shape_of,
)
from transformer_core.models.device_kind import laid_out_for
from transformer_core.models.loss import token_loss_sum
from transformer_core.models.objective import objective_of
from transformer_core.models.registry import build_model
from transformer_core.models.unpadded import expect_lengths
from transformer_core.observe.followed_step import (
    Interval,
    StepMemory,
    StorageTracker,
    followed_step,
)
from transformer_core.parallel.messages import MIB, buckets, copy_back, flatten, gradients
from transformer_core.parallel.registry import build_strategy
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.topology import Process
from transformer_core.training.assemble import Trainer, equip
from transformer_core.training.precision import Autocast, ScaledAutocast, set_matmul

VALIDATION_TOKENS = 8_192  # tokens of a validation batch, as in ``evaluation_batches``


Lengths = list[list[int]]  # real tokens of each row of source, target_input and target_output


@dataclass(frozen=True)
class Shapes:
    """The shapes a rank works on: its micro-batches of one step, and a validation batch."""

    training: list[BatchShape]
    validation: BatchShape
    lengths: Sequence[Lengths] = ()  # of each micro-batch, if the corpus is known


def shapes(
    spec: RunSpec, vocabulary: int, stores: tuple[PairStore, PairStore] | None, shares: int
) -> Shapes:
    """The heaviest batches: of the corpus if it exists, else the largest that its settings allow."""
    micro_batches = spec.training.accumulation.micro_batches
    if stores is None:
        return Shapes(
            [expected_shape(spec, shares * micro_batches)] * micro_batches,
            longest_rows(spec, VALIDATION_TOKENS // spec.longest),
        )
    train, validation = stores
    _, batch = heaviest_batch(spec, train, vocabulary, shares)
    _, first = next(evaluation_batches(validation))
    lengths = [[(side != PAD).sum(1).tolist() for side in _sides(m)] for m in batch.micro_batches]
    return Shapes([shape_of(micro) for micro in batch.micro_batches], shape_of(first), lengths)


def _sides(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.source, batch.target_input, batch.target_output


def predict_ranks(
    spec: RunSpec,
    vocabulary: int,
    device: torch.device,
    stores: tuple[PairStore, PairStore] | None = None,
) -> tuple[list[PredictedRank], int]:
    """The memory of rank 0, and of rank 1 if other ranks do different work; and the number of
    parameters of the whole model.

    Without a GPU, the memory of a CUDA ``device`` is imitated. Raises Unsupported if that is
    impossible, or there is nothing to train.
    """
    spec.refuse_without_meaning()
    parallel, world_size = spec.parallel, spec.world_size
    if isinstance(parallel, DataParallel):
        # DataParallel is the same scheme in one process, with devices instead of ranks.
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
    """``spec`` with 32-bit products instead of a format that only CUDA devices have: they take the
    same memory."""
    return spec.with_training(precision=Fp32()) if spec.numbers.device == "cuda" else spec


def _predict_rank(
    spec: RunSpec, vocabulary: int, process: Process, shape: Shapes
) -> tuple[PredictedRank, int]:
    device = process.device
    packed = isinstance(spec.batching.rows, PackedRows)
    with torch.device("meta"):
        model = build_model(spec.model, vocabulary, packed)
    # Before fake tensors, which have no values: it may have to inspect the result of a product.
    set_matmul(spec.training.precision, device)
    with _silent_group(spec, process), _idle_loops():
        strategy = expected_strategy(spec, process)
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with (
            fake,
            StorageTracker(device.type) as tracker,
            patch.object(torch, "_grouped_mm", _one_group, create=True),  # torch 2.6 has none
        ):
            place(model, device)
            trainer = _trainer(spec, process, strategy, model)
            trainer.module.train()
            batch = blank_batch(shape.training, device)
            for micro, lengths in zip(batch.micro_batches, shape.lengths, strict=False):
                for side, real in zip(_sides(micro), lengths, strict=True):
                    expect_lengths(side, real)
            _first_update(trainer)
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
def _idle_loops() -> Iterator[None]:
    """Compiled loops allocate their results, but compute nothing, since fake tensors have no numbers."""
    # Imported late, because the compiler takes half a second.
    from transformer_core.models import compiled_loops, dropout
    from transformer_core.training import optimizer

    def of_its_size(x: Tensor) -> NDArray[np.float32]:
        return np.broadcast_to(np.float32(0), x.numel())

    with (
        patch.multiple(compiled_loops, array_of=of_its_size, in_pieces=lambda *_: None),
        patch.object(dropout, "_seed", lambda: 0),
        patch.object(optimizer, "in_one_loop", lambda *_: None),
    ):
        yield


@contextlib.contextmanager
def _silent_group(spec: RunSpec, process: Process) -> Iterator[None]:
    """A process group for the strategies that need one, which sends no messages."""
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


def expected_strategy(spec: RunSpec, process: Process) -> Strategy:
    """The strategy of a training of which nothing is computed."""
    accumulation = spec.training.accumulation
    if isinstance(spec.parallel, Ddp):
        return ExpectedDdp(spec.parallel, process, accumulation)
    return build_strategy(spec.parallel, process, spec.machine, accumulation)


def place(model: nn.Module, device: torch.device) -> None:
    """Replaces the model's tensors by fake ones on ``device``, tied ones by the same."""
    # Keeps the old ones alive, since they are identified by their addresses.
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
        spec = spec.with_training(optimizer=Sgd(kind="sgd"))
    trainer = equip(spec, process, strategy, model)
    if eight_bit:
        trainer = replace(trainer, optimizer=ExpectedEightBit(trainer.module.parameters()))
    if isinstance(trainer.precision, ScaledAutocast):
        # Whether to skip a step depends on values, which fake tensors lack.
        plain = Autocast(process.device.type, trainer.precision.dtype)
        trainer = replace(trainer, precision=plain)
    return trainer


def _first_update(trainer: Trainer) -> None:
    """Makes the optimizer create its state, without forward and backward passes: they would leave
    nothing in memory, and take most of the time."""
    for parameter in trainer.module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    trainer.strategy.update(
        lambda: trainer.precision.step(
            trainer.optimizer, trainer.module.parameters(), trainer.spec.training.clip_norm
        )
    )
    for parameter in trainer.module.parameters():
        parameter.grad = None


@torch.no_grad()
def _validate(trainer: Trainer, shape: BatchShape, tracker: StorageTracker) -> StepMemory:
    """One validation batch, as in :func:`transformer_core.training.evaluation.validation_loss`, while
    gradients and optimizer state exist."""
    trainer.model.eval()
    begin = tracker.operations
    (batch,) = blank_batch([shape], trainer.device).micro_batches
    with trainer.precision.autocast():
        logits = objective_of(trainer.spec, trainer.model).logits(batch.source, batch.target_input)
    token_loss_sum(logits, batch.target_output, 0.0)
    return StepMemory(tracker, [Interval("forward", begin, tracker.operations)])


_BLOCK, _SMALL = 256, 4096
"""Number of elements that share a scale, and number below which moments stay in 32 bits
(bitsandbytes)."""


class ExpectedDdp(Strategy):
    """The memory of DistributedDataParallel without its reducer.

    Buckets exist permanently. Gradients are copied into them, or are views of them. A compression
    hook copies each full bucket. PowerSGD keeps the errors of all buckets, and copies each full one.
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
    """The memory of AdamW with 8-bit moments: two bytes per parameter and two scales per block."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Creates the state, without changing weights."""
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


@contextmanager
def imitated_cuda() -> Iterator[None]:
    """A context in which operations allocate the memory that CUDA's kernels would.

    Replaces the functions themselves: a mode of torch would not see those that backward calls again
    for layers with checkpoints.
    """
    softmax = ("softmax", "log_softmax")
    wide = [(F, "layer_norm"), *product((F, torch, Tensor), softmax)]
    with contextlib.ExitStack() as replaced:
        replaced.enter_context(laid_out_for("cuda"))
        for owner, name in wide:
            other = _in_32_bits(getattr(owner, name))
            replaced.enter_context(patch.object(owner, name, other))
        attention = partial(_attention, F.scaled_dot_product_attention)
        replaced.enter_context(patch.object(F, "scaled_dot_product_attention", attention))
        replaced.enter_context(patch.object(F, "dropout", _dropout))
        yield


def _one_group(x: Tensor, weights: Tensor, **_: Any) -> Tensor:
    """The memory of a product of groups of rows [n, k] with a matrix each [groups, k, m], as for
    experts: torch refuses 32 bits for tensors without memory, although its kernels take them."""
    return x @ weights[0]


def _attention(
    of_torch: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> Tensor:
    """The memory-efficient kernel; FlashAttention keeps as much memory."""
    fused = torch.backends.cuda
    if not (fused.mem_efficient_sdp_enabled() or fused.flash_sdp_enabled()):
        return of_torch(q, k, v, attn_mask, dropout_p, is_causal)
    if attn_mask is not None:
        shape = (q.size(0), q.size(1), q.size(2), k.size(2))
        attn_mask = attn_mask.to(q.dtype).expand(shape)
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    heads: Tensor = kernel(q, k, v, attn_mask, True, dropout_p, is_causal)[0]
    return heads


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(x, p, True)[0] if training and p else x


def _in_32_bits(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def wide(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return function(x.float() if torch.is_autocast_enabled("cpu") else x, *args, **kwargs)

    return wide
