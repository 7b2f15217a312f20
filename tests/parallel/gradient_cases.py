"""Gradients of one global batch by any strategy, as every rank has them before its update."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from schemas.config.run_spec import RunSpec
from tests.distributed import run_ranks
from tests.training.small_training import small_setup, small_spec
from transformer_core.parallel.topology import Process
from transformer_core.training.loop import optimizer_step

PAIRS = 13
"""Pairs of a global batch, which no number of ranks divides; an epoch's last batch has one pair."""
FULL, LAST = 0, 3


@dataclass
class Found:
    """The state of a rank after steps with a learning rate of 0."""

    loss: float
    norm: float
    gradients: dict[str, Tensor]
    difference: float | None


def spec_of(**sections: Any) -> RunSpec:
    """A small run spec without dropout or clipping, so that gradients can be compared."""
    spec = small_spec(batching={"pairs": PAIRS}, model={"dropout": 0.0}, **sections)
    return RunSpec.model_validate(
        spec.model_dump() | {"training": spec.training.model_dump() | {"clip_norm": 0.0}}
    )


@dataclass(frozen=True)
class Case:
    """``steps`` steps on the same ``batch``."""

    spec: RunSpec
    batch: int = FULL
    steps: int = 1


def find(case: Case, process: Process | None = None) -> Found:
    setup = small_setup(case.spec, process)
    setup.module.train()
    for _ in range(case.steps):
        batches = setup.strategy.batches(setup.feed, 0, case.batch)
        loss, norm = optimizer_step(setup, next(batches), 0.0)
        batches.close()
    return Found(
        loss=float(setup.strategy.sum(loss)),
        norm=float(norm),
        gradients={
            name: parameter.grad.cpu().clone()
            for name, parameter in setup.model.named_parameters()
            if parameter.grad is not None
        },
        difference=setup.strategy.replica_difference(),
    )


def find_all(cases: dict[str, Case]) -> dict[str, Found]:
    return {name: find(case) for name, case in cases.items()}


def find_all_on_gpus(cases: dict[str, Case]) -> dict[str, Found]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    process = Process(rank, ranks, rank, ranks, device)
    return {name: find(case, process) for name, case in cases.items()}


def find_on_ranks(
    cases: dict[str, Case], world_size: int, gpus: bool = False
) -> dict[str, list[Found]]:
    """The results of every rank by case; the processes are started once."""
    ranks = (
        run_ranks(find_all_on_gpus, world_size, cases, backend="nccl")
        if gpus
        else run_ranks(find_all, world_size, cases)
    )
    return {name: [rank[name] for rank in ranks] for name in cases}


def reference(batch: int = FULL) -> Found:
    return find(Case(spec_of(parallel={"kind": "single"}), batch))


def distance(found: Found, expected: Found) -> float:
    """Norm of the difference of all gradients, relative to that of the expected ones."""
    assert found.gradients.keys() == expected.gradients.keys()
    left, right = (
        torch.cat([side.gradients[name].flatten() for name in expected.gradients])
        for side in (found, expected)
    )
    return float((left - right).norm() / right.norm())


def assert_same(found: Found, expected: Found, tolerance: float) -> None:
    """Assert that loss, gradients and norm are the expected ones up to a relative ``tolerance``."""
    assert abs(found.loss - expected.loss) <= 1e-5 * abs(expected.loss)
    assert distance(found, expected) <= tolerance
    assert abs(found.norm - expected.norm) <= tolerance * expected.norm
