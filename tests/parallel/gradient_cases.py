"""Gradients of one global batch by any strategy, as every rank finds them before its update."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from schemas.config.run_spec import RunSpec
from tests.distributed import run_ranks
from tests.training.small_training import small_setup, small_spec
from transformer_core.parallel.ddp import DdpStrategy
from transformer_core.training.assemble import Setup
from transformer_core.training.loop import optimizer_step

PAIRS = 13
"""Pairs of a global batch: no number of ranks divides it. The last of an epoch has one pair."""
FULL, LAST = 0, 3


@dataclass
class Found:
    """What a rank has after a step whose learning rate is 0."""

    loss: float
    norm: float
    gradients: dict[str, Tensor]
    state_elements: int
    communication: dict[str, Any] | None
    difference: float | None


def spec_of(**sections: Any) -> RunSpec:
    """A small run spec without dropout or clipping, so that gradients can be compared."""
    spec = small_spec(batching={"pairs": PAIRS}, model={"dropout": 0.0}, **sections)
    return RunSpec.model_validate(
        spec.model_dump() | {"training": spec.training.model_dump() | {"clip_norm": 0.0}}
    )


def find(
    spec: RunSpec, batch: int = FULL, steps: int = 1, change: Callable[[Setup], None] | None = None
) -> Found:
    """``steps`` steps on the same batch. ``change(setup)`` comes first."""
    setup = small_setup(spec)
    if change is not None:
        change(setup)
    setup.module.train()
    for _ in range(steps):
        generator = setup.strategy.batches(setup.feed, 0, batch)
        (item,) = islice(generator, 1)
        loss, norm = optimizer_step(setup, item, 0.0)
        generator.close()
    found = Found(
        loss=float(setup.strategy.sum(loss)),
        norm=float(norm),
        gradients={
            name: parameter.grad.clone()
            for name, parameter in setup.model.named_parameters()
            if parameter.grad is not None
        },
        state_elements=sum(
            value.numel()
            for entries in setup.optimizer.state.values()
            for value in entries.values()
            if isinstance(value, Tensor)
        ),
        communication=setup.strategy.communication(),
        difference=setup.strategy.replica_difference(),
    )
    return found


@dataclass(frozen=True)
class Case:
    """One call of :func:`find`."""

    spec: RunSpec
    batch: int = FULL
    steps: int = 1
    change: Callable[[Setup], None] | None = None


def find_all(cases: dict[str, Case]) -> dict[str, Found]:
    return {name: find(c.spec, c.batch, c.steps, c.change) for name, c in cases.items()}


def find_on_ranks(cases: dict[str, Case], world_size: int) -> dict[str, list[Found]]:
    """What every rank finds, by case; the processes are started once."""
    ranks = run_ranks(find_all, world_size, cases)
    return {name: [rank[name] for rank in ranks] for name in cases}


def reference(batch: int = FULL) -> Found:
    return find(spec_of(parallel={"kind": "single"}), batch)


def distance(found: Found, expected: Found) -> float:
    """Norm of the difference of all gradients, relative to that of the expected ones."""
    assert found.gradients.keys() == expected.gradients.keys()
    flat, right = (
        torch.cat([g.flatten() for g in sorted_values(side.gradients)])
        for side in (found, expected)
    )
    return float((flat - right).norm() / right.norm())


def sorted_values(tensors: dict[str, Tensor]) -> list[Tensor]:
    return [tensors[name] for name in sorted(tensors)]


def assert_same(found: Found, expected: Found, tolerance: float) -> None:
    """Loss, gradients and their norm are the expected ones, up to a relative ``tolerance``."""
    assert abs(found.loss - expected.loss) <= 1e-5 * abs(expected.loss)
    assert distance(found, expected) <= tolerance
    assert abs(found.norm - expected.norm) <= tolerance * expected.norm


class ForgottenScale(DdpStrategy):
    """The average over ranks is taken for the sum."""

    @property
    def loss_scale(self) -> float:
        return 1.0


class NeverSynchronises(DdpStrategy):
    """no_sync is also around the last micro-batch."""

    def sync_context(self, last: bool) -> contextlib.AbstractContextManager[None]:
        return self.module.no_sync()
