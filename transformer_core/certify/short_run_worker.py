"""One process of a short run: trains, checks every step, and records losses, norms and weights.

:mod:`transformer_core.certify.short_run` starts it; do not start it by hand.
"""

import contextlib
import hashlib
import math
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from schemas.base import MOST_SECONDS
from schemas.config.measurement import REFERENCE
from schemas.config.model import (
    AnyLanguageModel,
    AnyModel,
    DecoderOnly,
    TorchTransformer,
    Transformer,
)
from schemas.config.parallel import Machine
from schemas.config.run_spec import RunSpec
from schemas.results import SeedTrajectory, Trajectory
from schemas.results.certificates import Checks
from schemas.results.runs import StepKernels
from transformer_core.certify.bounds import Weights, course_floor
from transformer_core.certify.checker import Checker, in_the_last_place
from transformer_core.certify.dropout import (
    dropout_moments,
    known_dropout,
    readable,
    readable_vocabulary,
)
from transformer_core.certify.final_losses import compare_final_losses
from transformer_core.certify.number_formats import to_bf16
from transformer_core.certify.replay import NotReplayed, Replay, observed, obstacle
from transformer_core.certify.short_run import LateSteps, ShortRunOrder
from transformer_core.certify.tensors import CanonicalTensors
from transformer_core.common.files import atomic_path, write_text
from transformer_core.common.progress import RunProgress
from transformer_core.common.records import read_record
from transformer_core.data.batching.epoch_plan import plan_epoch
from transformer_core.data.sharding.shard_store import PairStore, first_pairs
from transformer_core.machine.provenance import collect
from transformer_core.machine.step_kernels import FirstStep
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.topology import Process
from transformer_core.run.worker import Program
from transformer_core.training import checkpoint
from transformer_core.training.assemble import Setup, assemble
from transformer_core.training.loop import Diverged, optimizer_step, train
from transformer_core.training.observer import Progress
from transformer_core.training.precision import ScaledAutocast

STEPS_AS_TIMED = 3
"""Number of steps without deterministic algorithms."""
STEPS_RESUMED = 2
"""Number of steps after resuming: the last of one epoch and the first of the next."""
LATE = 20
"""Number of the step that they follow; a tenth of the warm-up if that is later."""
RESUMED = "resumed"
"""The folder for files of a resumed training, while it is checked."""
PATIENCE = 10
"""Factor of machine.timeout: the main rank computes the steps of all ranks alone, in 64 bits, which takes
far longer than a step, and the others wait in a message."""
OVERFLOWING = 2.0**100
"""A loss scale at which every gradient overflows."""


class Enough(Exception):
    """All steps that were asked for are done."""


class Recorder(Progress):
    """Records the results of every step of a short run; they stay on the device until :meth:`read`."""

    def __init__(
        self,
        strategy: Strategy,
        progress: RunProgress,
        checker: Checker | None = None,
        kernels: FirstStep | None = None,
        last: int | None = None,
    ) -> None:
        """Ends the training after step ``last`` by raising :class:`Enough`."""
        super().__init__(progress)
        self.strategy, self.checker, self.kernels, self.last = strategy, checker, kernels, last
        self.target_tokens: list[int] = []
        self.loss_sums: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.differences: list[float | None] = []

    def start(self, step: int) -> None:
        super().start(step)
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

    def step_done(self, step: int, *counts: Any) -> None:
        super().step_done(step, *counts)
        if step == self.last:
            raise Enough

    def read(self, seed: int, initial_sha256: str) -> SeedTrajectory:
        """The record of all ranks, on every rank. Raises Diverged if a loss is not finite."""
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


def digest(weights: dict[str, Tensor]) -> str:
    """The SHA-256 of the names and values of ``weights``."""
    hashed = hashlib.sha256()
    for name in sorted(weights):
        hashed.update(name.encode())
        hashed.update(weights[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def make_deterministic(model: AnyModel | AnyLanguageModel, device: torch.device) -> None:
    """Makes torch use deterministic algorithms where it has them. The project's own models always do so
    on a CPU; but threads add the gradients of ``weight[ids]`` in any order."""
    several = torch.get_num_threads() > 1
    own = isinstance(model, Transformer | TorchTransformer | DecoderOnly)
    if device.type == "cuda" or (several and not own):
        # cuBLAS reads this when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Filling memory costs time and matters only to code that reads uninitialised memory.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Recorded:
    """The training of one seed."""

    trajectory: SeedTrajectory
    strategy: Strategy
    kernels: StepKernels | None
    """The kernels of its first step; None unless its weights were saved."""


def record(
    spec: RunSpec,
    process: Process,
    stores: tuple[PairStore, PairStore],
    output: Path,
    save_weights: bool,
    dropout: float = 0.0,
    checked: bool = True,
    late: LateSteps | None = None,
) -> Recorded:
    """Trains ``spec`` on the first of ``stores``; the second one is for validation.

    With ``save_weights``, the main rank writes the initial and final weights to ``output``. Such a
    training also checks a few steps after resuming and the ``dropout``, unless it is 0, and if torch
    uses deterministic algorithms, it checks a few more steps without them. A training that is not
    ``checked`` only records the values that others are compared with.
    """
    vocabulary = stores[0].manifest.vocabulary
    setup = assemble(spec, process, vocabulary, *stores)
    dropping = spec.model_copy(update={"model": spec.model.model_copy(update={"dropout": dropout})})
    unread = obstacle(dropping, process.device) if dropout else "nothing is dropped"
    tensors = CanonicalTensors(setup, vocabulary, dropout)
    checker = None
    if save_weights and checked:
        checker = Checker(setup, tensors, output / RESUMED, follows=True)
    nowhere = output / "no-checkpoints"
    initial = _on_host(checker.weights if checker else tensors.weights())
    with FirstStep() as kernels:
        watched = kernels if save_weights else None
        recorder = _trained(setup, nowhere, checker, watched, show=True)
        # A technique may keep frozen weights in 16 bits.
        frozen = initial.keys() & tensors.parameters - tensors.trained
        start = digest(initial | {name: to_bf16(initial[name]) for name in frozen})
        trajectory = recorder.read(spec.training.seed, start)
    if not save_weights:
        return Recorded(trajectory, setup.strategy, None)
    final = _on_host(checker.weights if checker else tensors.weights())
    if process.is_main:
        for file, weights in (("initial", initial), ("final", final)):
            with atomic_path(output / f"{file}.safetensors") as temporary:
                save_file(weights, temporary)
    seen = kernels.read(setup.model)
    known: dict[str, Any] = {}
    if not checked:
        again = _assembled(setup, spec)
        tensors = tensors.of(again)
        # Frozen weights and constant buffers must stay as they are, so their floor is 0.
        trained = {name: initial[name] for name in initial if name in tensors.trained}
        tensors.write(initial | in_the_last_place(trained))
        recorder = _trained(again, nowhere, show=True)
        disturbed = recorder.read(spec.training.seed, trajectory.initial_sha256)
        after = _on_host(tensors.weights())
        sides = ({n: w.numpy() for n, w in side.items()} for side in (after, final, initial))
        known["floor"] = course_floor(trajectory, disturbed, Weights(*sides))
    if checker and not unread:
        try:
            known |= _resumed(setup, dropping, late, output, checker, masks=True)
        except NotReplayed as error:
            unread = str(error)
    if checker and unread:
        known |= _resumed(setup, spec, late, output, checker, masks=False)
    if dropout:
        known["dropout_probability"] = dropout
        if checker and unread:
            known["not_replayed"] = unread
        if not checker or unread:
            known["moments"] = dropout_moments(_assembled(setup, dropping))
        fewer = readable_vocabulary(spec, vocabulary) if checker and unread else None
        if fewer is not None:
            read = assemble(readable(dropping), process, fewer, *stores)
            known["dropout"] = known_dropout(read, fewer)
    if seen.deterministic and checked:
        known["as_timed"] = _as_timed(setup, tensors, output)
    return Recorded(trajectory.model_copy(update=known), setup.strategy, seen)


def _assembled(like: Setup, spec: RunSpec) -> Setup:
    """Another training by the same process on the same data."""
    vocabulary = like.train_store.manifest.vocabulary
    return assemble(spec, like.process, vocabulary, like.train_store, like.validation_store)


def _trained(
    setup: Setup,
    checkpoints: Path,
    checker: Checker | None = None,
    kernels: FirstStep | None = None,
    last: int | None = None,
    show: bool = False,
) -> Recorder:
    """Runs a short training, or the part of one up to step ``last``."""
    spec = setup.spec
    name = f"{spec.variant}, short run, seed {spec.training.seed}"
    progress = RunProgress(name, spec.training.steps, show=show and setup.process.is_main)
    recorder = Recorder(setup.strategy, progress, checker, kernels, last)
    with contextlib.suppress(Enough):
        train(setup, recorder, checkpoints, validate_last=False)
    optimizer: Any = setup.optimizer
    if hasattr(optimizer, "eval"):
        # The trained weights are compared, not the averages that a training ends with.
        optimizer.train()
        setup.strategy.weights_exchanged()
    progress.close()
    return recorder


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies for numpy, which has no bfloat16: in 32 bits, these numbers are the same."""
    return {n: (t.float() if t.dtype == torch.bfloat16 else t).cpu() for n, t in tensors.items()}


def _resumed(
    like: Setup, spec: RunSpec, late: LateSteps | None, output: Path, before: Checker, masks: bool
) -> dict[str, Any]:
    """Resumes from a checkpoint, like an interrupted training, and checks a few steps across the end
    of an epoch, with the schedule of the timed run.

    If ``spec`` drops, ``masks`` must be read, so that the plain model can apply them; NotReplayed if
    they cannot be. ``before`` checked the training ``like`` it without dropout.
    """
    training = spec.training
    if late is not None:
        training = training.model_copy(update={"schedule": late.schedule, "steps": late.steps})
    warmup = getattr(training.schedule, "warmup", 0)
    done = max(0, min(max(LATE, warmup // 10), training.steps - STEPS_RESUMED))
    spec = spec.model_copy(update={"training": training})
    store, last = _near_the_end(like)
    setup = _assembled(replace(like, train_store=store), spec)
    folder = output / RESUMED
    if last is not None:
        steps = [{"step": done, "epoch": last[0], "batch": last[1]}]
        state = {"history": {"steps": steps, "validations": [], "resumed_at": []}, "observer": {}}
        checkpoint.save(folder / "checkpoints", setup, done, state)
        setup.strategy.synchronise()  # until the main rank has renamed it
    else:
        done = 0
    replay, end = Replay(setup, folder) if masks else None, done + STEPS_RESUMED
    tensors, compared = before.tensors.of(setup), range(done + 1, end + 1)
    checker = Checker(setup, tensors, folder, compared, last, before.floors, replay)
    try:
        _trained(setup, folder / "checkpoints", checker, last=end)
        setup.strategy.synchronise()
    finally:
        if setup.process.is_main:
            shutil.rmtree(folder, ignore_errors=True)
    checks = checker.read()
    scaled = isinstance(setup.precision, ScaledAutocast)
    lost = _lost_by_scaling(setup, tensors) if scaled else []
    if checks is None:  # not the main rank
        return {}
    checks.not_resumed.extend(lost)
    if replay is None:
        return {"after_resuming": checks}
    texts = isinstance(spec.model, DecoderOnly)
    return {"after_resuming": checks, "dropout": observed(replay.steps, texts)}


def _lost_by_scaling(setup: Setup, tensors: CanonicalTensors) -> list[str]:
    """Checks that the loss scale is at least what overflows have left of the requested one: gradients of
    long texts need it, those of a few tokens do not show its loss. Checks, too, that a step whose
    gradient overflows leaves the weights as they are and lowers the loss scale: otherwise all later
    steps overflow. Returns what was lost in any rank. Every rank must call this."""
    before = tensors.weights()
    precision: Any = setup.precision
    scaler, requested = precision.scaler, setup.spec.training.precision.initial_scale  # type: ignore[union-attr]
    # The scaler rounds the requested one to 32 bits.
    least = 0.99 * requested * 0.5 ** int(precision.skipped)
    lost = {"the requested loss scale": scaler.get_scale() < least}
    state = scaler.state_dict()
    scaler.load_state_dict(state | {"scale": OVERFLOWING})
    with contextlib.closing(setup.strategy.batches(setup.feed, 0, 0)) as batches:
        optimizer_step(setup, next(batches), 1e-3)
    lost["a lower loss scale after a gradient that overflows"] = scaler.get_scale() >= OVERFLOWING
    scaler.load_state_dict(state)
    after = tensors.weights()
    same = all(torch.equal(after[name], then) for name, then in before.items())
    lost["the weights before a step whose gradient overflows"] = not same
    everywhere = zip(*setup.strategy.gather([*map(float, lost.values())]), strict=True)
    return [what for what, of_ranks in zip(lost, everywhere, strict=True) if any(of_ranks)]


def _near_the_end(setup: Setup) -> tuple[PairStore, tuple[int, int] | None]:
    """A store of the first pairs, enough for about two and a half batches, and the position (epoch and
    index) of the second to last batch of its epoch; None if the epoch has a single batch."""
    with contextlib.closing(setup.strategy.batches(setup.feed, 0, 0)) as batches:
        pairs = next(batches).pairs
    store = first_pairs(setup.train_store, pairs * 5 // 2)
    windows = plan_epoch(store, setup.spec.batching, setup.spec.training.seed, 0, 0)
    count = sum(len(window) for window in windows)
    return store, (0, count - 2) if count > 1 else None


def _as_timed(like: Setup, tensors: CanonicalTensors, output: Path) -> Checks | None:
    """Checks a few steps without deterministic algorithms, because timed runs do not use these and
    so run some other kernels. None on ranks other than the main one."""
    torch.use_deterministic_algorithms(False)
    try:
        steps = min(like.spec.training.steps, STEPS_AS_TIMED)
        training = like.spec.training.model_copy(update={"steps": steps})
        setup = _assembled(like, like.spec.model_copy(update={"training": training}))
        checker = Checker(setup, tensors.of(setup), output / RESUMED)
        _trained(setup, output / "no-checkpoints", checker)
        return checker.read()
    finally:
        torch.use_deterministic_algorithms(True, warn_only=True)


def patient(machine: Machine) -> Machine:
    """``machine`` with the timeout of a training whose main rank computes more than the others."""
    timeout = min(MOST_SECONDS, PATIENCE * machine.timeout)
    return machine.model_copy(update={"timeout": timeout})


def work(order: ShortRunOrder, program: Program) -> None:
    """Trains the seeds one after the other; the main rank writes the weights and trajectory.json."""
    started, began = datetime.now(UTC), time.monotonic()
    spec = order.spec
    process, stores = program.process, program.stores
    make_deterministic(spec.model, process.device)
    machine = patient(spec.machine)
    found: list[Recorded] = []
    for number in range(order.seeds):
        training = spec.training.model_copy(update={"seed": spec.training.seed + number})
        seeded = spec.model_copy(update={"training": training, "machine": machine})
        # The reference gets no certificate: the others are compared with it.
        checked, first = spec.variant != REFERENCE, number == 0
        # One process trains all seeds: starting another takes longer than a few steps of a small model.
        found.append(
            record(seeded, process, stores, order.output, first, order.dropout, checked, order.late)
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
    """Whether to train no further seed, because the verdict is clear or the time is up. All ranks
    get the same answer."""
    if order.reference is None or len(seeds) < max(2, order.first_look):
        return False
    if len(seeds) == order.first_look:
        theirs = read_record(order.reference, Trajectory).seeds[: len(seeds)]
        if len(theirs) < len(seeds):
            return True  # the reference has fewer seeds
        mine, expected = ([s.losses for s in side] for side in (seeds, theirs))
        if not compare_final_losses(mine, expected, order.margin).undecided:
            return True
    elapsed = strategy.gather([time.monotonic() - began])
    return elapsed[0][0] > order.budget
