"""One process of a short run that a certificate compares: losses, gradient norms and weights.

Started by :mod:`transformer_core.certify.short_run`, not by hand.
"""

import hashlib
import math
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from schemas.config.equivalence import REFERENCE
from schemas.config.run_spec import RunSpec
from schemas.results import SeedTrajectory, Trajectory
from schemas.results.checks import Checks
from schemas.results.kernels import StepKernels
from transformer_core.certify.checker import Checker
from transformer_core.certify.dropout import (
    dropout_moments,
    known_dropout,
    readable,
    readable_vocabulary,
)
from transformer_core.certify.final_losses import compare_final_losses
from transformer_core.certify.short_run import ShortRunOrder
from transformer_core.certify.tensors import CanonicalTensors
from transformer_core.common.files import atomic_path, write_text
from transformer_core.common.progress import RunProgress
from transformer_core.common.records import read_record
from transformer_core.data.sharding.shard_store import PairStore
from transformer_core.data.sharding.training_shards import open_training_shards
from transformer_core.machine.provenance import collect
from transformer_core.machine.step_kernels import FirstStep
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.topology import Process
from transformer_core.run.worker import Program
from transformer_core.training.assemble import Setup, assemble
from transformer_core.training.loop import Diverged, train
from transformer_core.training.observer import Observer

STEPS_AS_TIMED = 3


class Recorder(Observer):
    """Records what every step of a short run computed, on the device."""

    def __init__(
        self,
        strategy: Strategy,
        progress: RunProgress,
        checker: Checker | None = None,
        kernels: FirstStep | None = None,
    ) -> None:
        self.strategy = strategy
        self.checker = checker
        self.kernels = kernels
        self.progress = progress
        self.target_tokens: list[int] = []
        self.loss_sums: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.differences: list[float | None] = []

    def start(self, step: int) -> None:
        self.progress.start(step)
        if self.kernels is not None:
            self.kernels.begin()

    def updated(self, step: int, target_tokens: int, loss_sum: Tensor, norm: Tensor) -> None:
        if self.kernels is not None:
            self.kernels.end()
        self.target_tokens.append(target_tokens)
        self.loss_sums.append(loss_sum.detach().double())
        self.norms.append(norm.detach().double())
        self.differences.append(self.strategy.replica_difference())
        if self.checker is not None:
            self.checker.updated(step, target_tokens, loss_sum, norm)

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        self.progress.step_done(tokens)

    def logged(self, step: int, loss: float) -> None:
        self.progress.logged(step, loss)

    def read(self, seed: int, initial_sha256: str) -> SeedTrajectory:
        """The record of all ranks, on every rank; Diverged if a loss is not finite."""
        sums = self.strategy.sum(torch.stack(self.loss_sums)).tolist()
        norms = torch.stack(self.norms).tolist()
        losses = [total / tokens for total, tokens in zip(sums, self.target_tokens, strict=True)]
        for step, loss in enumerate(losses, start=1):
            if not math.isfinite(loss):
                raise Diverged(f"training loss at step {step} is {loss}")
        differences = [difference for difference in self.differences if difference is not None]
        return SeedTrajectory(
            seed=seed,
            initial_sha256=initial_sha256,
            losses=losses,
            grad_norms=[n if math.isfinite(n) else None for n in norms],
            replica_differences=differences or None,
            checks=None if self.checker is None else self.checker.read(),
        )


def canonical_weights(setup: Setup, vocabulary: int) -> dict[str, Tensor]:
    """:meth:`CanonicalTensors.weights`."""
    return CanonicalTensors(setup, vocabulary).weights()


def digest(weights: dict[str, Tensor]) -> str:
    """SHA-256 of names and values."""
    hashed = hashlib.sha256()
    for name in sorted(weights):
        hashed.update(name.encode())
        hashed.update(weights[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def make_deterministic(device: torch.device) -> None:
    """Use deterministic algorithms if torch has them; on a CPU all of them are."""
    if device.type == "cuda":
        # cuBLAS reads this when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Only uninitialised memory would need it, and nothing here reads any.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Recorded:
    """A training with one seed."""

    trajectory: SeedTrajectory
    strategy: Strategy
    kernels: StepKernels | None
    """Kernels of its first step, for a seed whose weights are saved."""


def record(
    spec: RunSpec,
    process: Process,
    vocabulary: int,
    stores: tuple[PairStore, PairStore],
    output: Path,
    save_weights: bool,
    dropout: float = 0.0,
    checked: bool = True,
) -> Recorded:
    """Train ``spec`` on the first of ``stores``; the second is for validation.

    The main rank writes the weights before and after to ``output``, if they are to be saved; in
    that case ``dropout`` is also checked, unless it is 0, as are a few additional steps without
    deterministic algorithms, if those are in force. Unless a training is ``checked``, only the
    values that others are compared with are recorded.
    """
    setup = assemble(spec, process, vocabulary, *stores)
    looks = save_weights and checked
    checker = Checker(setup, vocabulary, output / "resumed") if looks else None
    initial = checker.weights if checker else canonical_weights(setup, vocabulary)
    name = f"{spec.variant}, short run, seed {spec.training.seed}"
    progress = RunProgress(name, spec.training.steps, show=process.is_main)
    with FirstStep() as kernels:
        recorder = Recorder(setup.strategy, progress, checker, kernels if save_weights else None)
        train(setup, recorder, output / "no-checkpoints", validate_last=False)
    progress.close()
    trajectory = recorder.read(spec.training.seed, digest(initial))
    if not save_weights:
        return Recorded(trajectory, setup.strategy, None)
    final = checker.weights if checker else canonical_weights(setup, vocabulary)
    if process.is_main:
        for file, weights in (("initial", initial), ("final", final)):
            with atomic_path(output / f"{file}.safetensors") as temporary:
                save_file(weights, temporary)
    seen = kernels.read(setup.model)
    known: dict[str, Any] = {}
    if dropout:
        with_dropout = spec.model.model_copy(update={"dropout": dropout})
        dropping = spec.model_copy(update={"model": with_dropout})
        looked_at = assemble(dropping, process, vocabulary, *stores)
        known["moments"] = dropout_moments(looked_at)
        fewer = readable_vocabulary(spec, vocabulary) if checked else None
        if fewer is not None:
            read = assemble(readable(dropping), process, fewer, *stores)
            known["dropout"] = known_dropout(read, fewer)
        known["dropout_probability"] = dropout
    if seen.deterministic and checked:
        known["as_timed"] = _as_timed(spec, process, vocabulary, stores, output)
    return Recorded(trajectory.model_copy(update=known), setup.strategy, seen)


def _as_timed(
    spec: RunSpec,
    process: Process,
    vocabulary: int,
    stores: tuple[PairStore, PairStore],
    output: Path,
) -> Checks | None:
    """Checks of a few steps without deterministic algorithms; null on ranks other than the main
    one.

    Timed runs do not use them, and some kernels differ as a result.
    """
    torch.use_deterministic_algorithms(False)
    try:
        steps = min(spec.training.steps, STEPS_AS_TIMED)
        training = spec.training.model_copy(update={"steps": steps})
        short = spec.model_copy(update={"training": training})
        setup = assemble(short, process, vocabulary, *stores)
        checker = Checker(setup, vocabulary, output / "resumed")
        progress = RunProgress(f"{spec.variant}, as timed", steps, show=False)
        recorder = Recorder(setup.strategy, progress, checker)
        train(setup, recorder, output / "no-checkpoints", validate_last=False)
        progress.close()
        return checker.read()
    finally:
        torch.use_deterministic_algorithms(True, warn_only=True)


def work(order: ShortRunOrder, program: Program) -> None:
    """Train with every seed in turn; the main rank writes weights and trajectory.json."""
    started, began = datetime.now(UTC), time.monotonic()
    spec = order.spec
    process = program.process
    make_deterministic(process.device)
    shards = open_training_shards(order.data)
    found: list[Recorded] = []
    for number in range(order.seeds):
        training = spec.training.model_copy(update={"seed": spec.training.seed + number})
        seeded = spec.model_copy(update={"training": training})
        # One process for all seeds: restarting costs more than a few steps of a small model.
        found.append(
            record(
                seeded,
                process,
                shards.vocabulary,
                shards.stores,
                order.output,
                number == 0,
                order.dropout,
                # The reference needs no certificate: others are compared with it.
                checked=spec.variant != REFERENCE,
            )
        )
        if _enough(order, [each.trajectory for each in found], found[-1].strategy, began):
            break
    strategy = found[-1].strategy
    if process.is_main:
        result = Trajectory(
            name=spec.variant,
            status="ok",
            reason=None,
            traceback=None,
            topology=strategy.topology(),
            seeds=[each.trajectory for each in found],
            kernels=found[0].kernels,
            provenance=collect(spec, order.command, started),
        )
        write_text(order.output / "trajectory.json", result.model_dump_json(indent=1) + "\n")
    strategy.synchronise()
    strategy.close()


def _enough(
    order: ShortRunOrder, seeds: list[SeedTrajectory], strategy: Strategy, began: float
) -> bool:
    """Whether no further seed is needed or affordable. The same on every rank."""
    if order.reference is None or len(seeds) < max(2, order.first_look):
        return False
    if len(seeds) == order.first_look:
        theirs = read_record(order.reference, Trajectory).seeds[: len(seeds)]
        if len(theirs) < len(seeds):
            return True  # the reference did not get so far
        mine, expected = ([s.losses for s in side] for side in (seeds, theirs))
        if not compare_final_losses(mine, expected, order.margin).undecided:
            return True
    elapsed = strategy.gather([time.monotonic() - began])
    return elapsed[0][0] > order.budget
