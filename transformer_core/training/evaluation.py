"""The validation loss."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transformer_core.data.batching.collate import Batch
from transformer_core.data.batching.feeding import evaluation_batches, gathered
from transformer_core.models.loss import token_loss_sum
from transformer_core.models.objective import objective_of
from transformer_core.training.assemble import Setup


@contextmanager
def averaged(setup: Setup) -> Iterator[None]:
    """A context, during a training, in which the weights are the averages that some optimizers keep."""
    optimizer: Any = setup.optimizer
    if not hasattr(optimizer, "eval"):
        yield
        return
    optimizer.eval()
    setup.strategy.weights_exchanged()
    yield
    optimizer.train()
    setup.strategy.weights_exchanged()


@torch.no_grad()
def validation_loss(
    setup: Setup, batches: Iterable[tuple[NDArray[np.int64], Batch]] | None = None
) -> float:
    """Mean cross-entropy per target token in nats, without label smoothing or dropout, over the
    validation split or some ``batches`` of it.

    Ranks share the batches, so the sum over ranks is that of a single process. Ranks that get no
    batch in the last turn still run a forward pass, since a sharded model needs all ranks.
    """
    model, store = setup.model, setup.validation_store
    share, shares = setup.strategy.validation_share
    total = torch.zeros(2, dtype=torch.float64)
    nothing = gathered(store, np.empty(0, np.int64))
    objective = objective_of(setup.spec, model)
    training = model.training
    model.eval()
    batches = iter(evaluation_batches(store) if batches is None else batches)
    while turn := [batch for _, batch in islice(batches, shares)]:
        batch = turn[share] if share < len(turn) else nothing
        batch = batch.to(setup.device)
        with setup.precision.autocast():
            logits = objective.logits(batch.source, batch.target_input)
        loss = token_loss_sum(logits, batch.target_output, 0.0)
        total += torch.tensor([float(loss), int((batch.target_output != 0).sum())])
        setup.strategy.progress()
    model.train(training)
    loss_sum, tokens = setup.strategy.sum(total).tolist()
    return loss_sum / tokens
