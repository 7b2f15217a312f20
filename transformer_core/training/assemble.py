"""Assembles a training, always in the same order."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from schemas.config.data import PackedRows
from schemas.config.run_spec import RunSpec
from transformer_core.data.batching.feeding import Feed
from transformer_core.data.sharding.shard_store import PairStore
from transformer_core.models.objective import objective_of
from transformer_core.models.registry import build_model
from transformer_core.parallel.registry import build_strategy
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.topology import Process
from transformer_core.training.optimizer import build_optimizer
from transformer_core.training.precision import Precision, build_precision


@dataclass(frozen=True)
class Trainer:
    """Everything that an optimizer step needs."""

    spec: RunSpec
    process: Process
    strategy: Strategy
    precision: Precision
    model: nn.Module
    module: nn.Module
    optimizer: Optimizer

    @property
    def device(self) -> torch.device:
        return self.process.device

    @property
    def parameters(self) -> int:
        """Trainable parameters of the whole model; a tied matrix counts once."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)


@dataclass(frozen=True)
class Setup(Trainer):
    feed: Feed
    train_store: PairStore
    validation_store: PairStore


def unwatched(moment: str) -> None:
    """Watches nothing."""


def assemble(
    spec: RunSpec,
    process: Process,
    vocabulary: int,
    train_store: PairStore,
    validation_store: PairStore,
    watch: Callable[[str], None] = unwatched,
) -> Setup:
    """Assembles a training. Calls ``watch`` with "weights" when they are on the device, and with
    "wrapped" when the strategy has wrapped them. The order matters:

    1. seed, then model on the CPU: every variant and device starts from the same weights;
    2. device, before the strategy: a wrapper registers hooks on the parameters that it gets;
    3. seed again, by rank: replicas must not drop the same activations;
    4. strategy around model *and* loss: the loss is computed where the logits are;
    5. optimizer last: it must hold the parameters that the wrapper created.

    Raises Unsupported if the variant changes nothing that its task has.
    """
    spec.refuse_without_meaning()
    training = spec.training
    torch.manual_seed(training.seed)
    packed = isinstance(spec.batching.rows, PackedRows)
    model = build_model(spec.model, vocabulary, packed)
    model.to(process.device)
    watch("weights")
    torch.manual_seed(training.seed + process.rank)
    strategy = build_strategy(spec.parallel, process, spec.machine, training.accumulation)
    trainer = equip(spec, process, strategy, model)
    watch("wrapped")
    share, shares = strategy.share
    feed = Feed(
        train_store,
        spec.batching,
        seed=training.seed,
        rank=share,
        world_size=shares,
        micro_batches=training.accumulation.micro_batches,
        device=process.device,
    )
    return Setup(
        **vars(trainer), feed=feed, train_store=train_store, validation_store=validation_store
    )


def equip(spec: RunSpec, process: Process, strategy: Strategy, model: nn.Module) -> Trainer:
    """Builds the trainer of ``model``, which lies on the device of ``process``: points 4 and 5 of
    :func:`assemble`."""
    training = spec.training
    precision = build_precision(training.precision, process.device, training.clipping)
    # Convert before wrapping, since the wrapper depends on the format of the weights.
    masters = precision.convert(model)
    module = strategy.wrap(objective_of(spec, model))
    optimizer = build_optimizer(training.optimizer, module, process.device, masters)
    return Trainer(spec, process, strategy, precision, model, module, optimizer)
