"""Records the CUDA graphs of a training before its first step.

torch records a graph when a layer sees inputs of a new shape for the second time. Recording takes as
long as many steps, so a new shape within a timed window would spoil the measurement.
"""

from contextlib import closing
from itertools import islice, takewhile

import torch
from torch import Tensor

from transformer_core.data.batching.collate import Batch
from transformer_core.models.compiled_layers import UNPLAYED
from transformer_core.training.assemble import Setup

SEARCHED = 400
"""Number of batches of the first epoch whose shapes we record; batching rounds widths and rows, so
few new shapes occur later."""


def record_graphs(setup: Setup) -> int:
    """Runs forward and backward on one batch of each shape, as often as recording takes, without
    updates; does nothing unless the layers use graphs.

    Returns the number of shapes. Does not change the random numbers of the training.
    """
    if getattr(setup.model, "compile_kind", "none") != "graphs":
        return 0
    seen: set[tuple[torch.Size, ...]] = set()
    devices = [device for device in setup.strategy.devices if device.type == "cuda"]
    with (
        torch.random.fork_rng(devices),
        closing(setup.strategy.batches(setup.feed, 0, 0)) as batches,
    ):
        first = takewhile(lambda batch: batch.epoch == 0, batches)
        for batch in islice(first, min(SEARCHED, setup.spec.training.steps)):
            for micro in batch.micro_batches:
                if _shape(micro) not in seen:
                    seen.add(_shape(micro))
                    _record(setup, micro)
    setup.optimizer.zero_grad(set_to_none=True)
    return len(seen)


def _shape(batch: Batch) -> tuple[torch.Size, ...]:
    return tuple(field.shape for field in batch.fields if isinstance(field, Tensor))


def _record(setup: Setup, micro: Batch) -> None:
    for _ in range(UNPLAYED):
        setup.optimizer.zero_grad(set_to_none=True)
        with setup.precision.autocast():
            loss = setup.module(*micro.fields)
        setup.precision.backward(loss * 0)
