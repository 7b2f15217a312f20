"""One process of a side that takes turns: it trains with the loop of a timed run, and an observer
waits between turns."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from schemas.config.run_spec import RunSpec
from schemas.results.runs import StepKernels
from transformer_core.machine.hardware import keep_to
from transformer_core.machine.peak_memory import reset_peak
from transformer_core.machine.step_kernels import FirstStep
from transformer_core.measure.sessions import TurnsOrder
from transformer_core.observe.turns import PlantedDelay, TurnsOver, TurnTaker, refuse
from transformer_core.parallel.strategy import Strategy
from transformer_core.run.coordinator import Hello, Turns, announced_session
from transformer_core.run.worker import Program
from transformer_core.training.assemble import Setup
from transformer_core.training.loop import train

ENDLESS_STEPS = 1_000_000
"""More steps than any session has."""
SEEDS = 2**32
"""Number of possible seeds."""


def endless(spec: RunSpec) -> RunSpec:
    """``spec`` as an uninterrupted training that ends with its last turn."""
    # Otherwise a rate that falls to 0 at the end of the training would continue below 0.
    steps = max(spec.training.steps, ENDLESS_STEPS)
    changes = {"steps": steps, "validate_every": 0, "checkpoint_every": 0}
    return spec.model_copy(update={"training": spec.training.model_copy(update=changes)})


def of_session(spec: RunSpec, session: int) -> RunSpec:
    """``spec`` with the seed of a session; the first session has the study's. Speed-ups depend on the
    batches, so each session has different ones."""
    seed = (spec.training.seed + session - 1) % SEEDS
    return spec.model_copy(update={"training": spec.training.model_copy(update={"seed": seed})})


def give_memory_back(setup: Setup) -> None:
    """Frees device memory for others, except what the next step needs."""
    # Each step begins without gradients anyway.
    setup.optimizer.zero_grad(set_to_none=True)
    for device in setup.strategy.devices:
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.empty_cache()


def work(order: TurnsOrder, program: Program) -> None:
    """Trains whenever it is this side's turn, until the coordinator dismisses it."""
    take_turns(order, program, endless(order.spec))


def take_turns(
    order: TurnsOrder,
    program: Program,
    spec: RunSpec,
    answer: Callable[[Setup, Any], Any] | None = None,
) -> None:
    """Assembles the training of ``spec``, and trains whenever it is this side's turn; ``answer``
    handles tasks that are not part of comparisons."""
    process = program.process
    # After the rendezvous of all ranks: other hosts may have started before the session.
    spec = of_session(spec, announced_session(order.coordinator))
    setup = program.assemble(spec)
    strategy = setup.strategy
    for device in strategy.devices:
        reset_peak(device)
    topology = strategy.topology()
    turns = Turns(order.coordinator, Hello(order.side, process.rank, topology))
    planted = None
    if order.planted is not None:
        # The base class waits for this process's devices only, not for other ranks.
        planted = PlantedDelay(order.planted, lambda: Strategy.synchronise(strategy))

    def prepare() -> None:
        # With several ranks, gloo's threads use the remaining cores, as in any training.
        if process.world_size == 1 and topology.device == "cpu":
            keep_to(torch.get_num_threads())

    def rest() -> None:
        if order.keeps == "state":
            give_memory_back(setup)

    further = partial(answer, setup) if answer else refuse
    with FirstStep() as first:

        def kernels() -> StepKernels:
            return first.read(setup.model)

        taker = TurnTaker(
            turns, order.spec, strategy, planted, prepare, rest, further, first, kernels
        )
        try:
            train(setup, taker, order.output / "no-checkpoints", validate_last=False)
        except TurnsOver:
            strategy.synchronise()
            strategy.close()
