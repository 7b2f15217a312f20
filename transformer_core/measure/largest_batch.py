"""The largest batch of a variant that fits.

Sizes double until one does not fit, then a bisection follows. Every size is tried in fresh
processes, and running out of memory is an answer. The final size runs a second time, and the next
larger one must fail again.
"""

import json
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from schemas.config.data import FixedSize, PackedRows
from schemas.config.measurement import LargestBatch
from schemas.config.run_spec import RunSpec
from schemas.results import BatchShape, BatchTrial, LargestBatchResult, ShardManifest
from schemas.results.memory import LimitKind, Purpose
from transformer_core.common.digests import write_result
from transformer_core.common.endings import count_failure, reproducing_command, signal_name
from transformer_core.common.files import write_text
from transformer_core.common.folder_locks import workplace
from transformer_core.common.progress import log
from transformer_core.common.records import read_record
from transformer_core.machine.hardware import read_hardware
from transformer_core.machine.provenance import collect
from transformer_core.measure.heaviest_batch import blank_batch
from transformer_core.measure.memory_anatomy import steps_of
from transformer_core.measure.memory_fit import gpu_bytes
from transformer_core.models.registry import build_model
from transformer_core.observe.followed_step import watched_step
from transformer_core.parallel import nvml
from transformer_core.parallel.nvml import visible_gpus
from transformer_core.parallel.registry import build_strategy
from transformer_core.run.oom import data_bytes, plain_size
from transformer_core.run.order import Order, TrainingJob
from transformer_core.run.supervisor import attempt
from transformer_core.run.worker import Program
from transformer_core.training.assemble import equip

RESULT = "trial.json"
STEPS_MORE = 4  # steps beyond the answer that are tried until one fails


class NoAnswerError(Exception):
    """A trial failed for another reason than running out of memory."""

    def __init__(self, trial: BatchTrial) -> None:
        super().__init__(trial.reason)
        self.trial = trial


def search(fits: Callable[[int], bool], start: int, resolution: float) -> tuple[int, int] | None:
    """Finds the largest size that fits and the smallest tried that does not; None if 1 does not
    fit.

    They differ by at most 1, or ``resolution`` times the first.
    """
    low = high = start
    if fits(start):
        while fits(high := 2 * low):
            low = high
    else:
        while high > 1 and not fits(low := high // 2):
            high = low
        if high == 1:
            return None
    while high - low > step_of(low, resolution):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low, high


def step_of(size: int, resolution: float) -> int:
    """The largest allowed step from ``size`` to one that does not fit."""
    return max(1, int(resolution * size))


class BatchTrialOrder(Order):
    """Order to take a few optimizer steps on batches of one size under a memory limit."""

    vocabulary: int
    pairs: int  # of a global batch, which all devices and micro-batches share
    source_tokens: int  # of every sentence; likewise the target's
    target_tokens: int
    limit: int  # bytes that each process may take


@dataclass
class Trials:
    """Trials of one variant. A size is the number of pairs in a micro-batch of one device."""

    order: BatchTrialOrder  # a template, whose size does not matter
    resolution: float
    trials: list[BatchTrial] = field(default_factory=list)

    def fits(self, size: int, purpose: Purpose = "search") -> bool:
        """Whether a batch of this size trains; NoAnswerError if the trial fails otherwise."""
        spec = self.order.spec
        pairs = size * spec.parts
        began = time.perf_counter()
        ended = self._attempt(pairs)
        seconds = time.perf_counter() - began
        trial = BatchTrial(**ended, pairs=pairs, purpose=purpose, seconds=seconds)
        self.trials.append(trial)
        log.info(
            "%s: %s pairs, %s: %s",
            *(spec.variant, f"{pairs:,}", purpose.replace("_", " "), trial.status),
        )
        if trial.status not in ("ok", "oom"):
            raise NoAnswerError(trial)
        return trial.status == "ok"

    def _attempt(self, pairs: int) -> dict[str, Any]:
        order = self.order.model_copy(update={"pairs": pairs})
        result = order.output / RESULT
        outcome = attempt(order, result)
        if outcome is None:
            peak = json.loads(result.read_text())["peak_bytes"]
            return {"status": "ok", "reason": None, "peak_bytes": peak}
        status, reason = outcome.status, outcome.reason
        if outcome.signal:
            # Libraries that cannot allocate memory under the limit end their process.
            how = signal_name(outcome.signal)
            status, reason = "oom", f"A process ended by itself under the limit: {how}."
        elif outcome.again:
            count_failure(order.output.with_suffix(".json"))
        return {"status": status, "reason": reason, "peak_bytes": None}


def find(trials: Trials, start: int) -> dict[str, Any]:
    """The confirmed answer, as fields of its record."""
    resolution, parts = trials.resolution, trials.order.spec.parts
    no_answer = {"largest_pairs": None, "step_pairs": None, "confirmed": False}
    try:
        found = search(trials.fits, start, resolution)
        if found is None:
            reason = f"Not even the smallest batch fits. {trials.trials[-1].reason}"
            return no_answer | {"status": "oom", "reason": reason}
        low, high = found
        while not trials.fits(low, "confirmation"):
            low, high = low - step_of(low, resolution), low
            if low < 1:
                reason = "No size fitted a second time."
                return no_answer | {"status": "oom", "reason": reason}
        # Memory use varies a little between runs: a size that failed may fit the next time.
        steps_more, failed_again = 1, not trials.fits(high, "one_step_more")
        while not failed_again and steps_more < STEPS_MORE:
            high += step_of(low, resolution)
            steps_more, failed_again = steps_more + 1, not trials.fits(high, "one_step_more")
    except NoAnswerError as error:
        return no_answer | {"status": error.trial.status, "reason": error.trial.reason}
    return {
        "status": "ok",
        "reason": None if failed_again else "Sizes larger than a failing one fitted after all.",
        "largest_pairs": low * parts,
        "step_pairs": (high - low) * parts,
        "confirmed": failed_again,
    }


def memory_limit(spec: RunSpec, settings: LargestBatch) -> tuple[LimitKind, int]:
    """The kind and bytes of a process's limit: the study's setting, else the whole device; on a CPU at
    most what ``ulimit -d`` allows."""
    hardware = read_hardware()
    # CUDA_VISIBLE_DEVICES may hide GPUs that NVML lists. Those that it does not list are torch's.
    usable = hardware.gpus and (visible_gpus() or not nvml.uuids())
    cuda = spec.machine.device == "cuda" or (spec.machine.device == "auto" and bool(usable))
    kind: LimitKind = "torch_allocator" if cuda else "data_segment"
    limit = settings.limit
    if limit is None and cuda and hardware.gpus:
        # Of a slice of a GPU, only the process itself knows its memory.
        limit = gpu_bytes(spec) or min(gpu.memory_bytes for gpu in hardware.gpus)
    limit = limit or hardware.memory_bytes // spec.processes_per_machine
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    bounded = not cuda and most != resource.RLIM_INFINITY
    return kind, min(limit, most) if bounded else limit


def first_size(spec: RunSpec, tokens: int) -> int:
    """The size of the spec's own batches, with rows of ``tokens`` tokens."""
    batching = spec.batching
    if isinstance(batching, FixedSize):
        return max(1, batching.scaled_pairs // spec.parts)
    return max(1, batching.scaled_tokens // tokens // spec.parts)


def measure(
    spec: RunSpec, settings: LargestBatch, manifest: ShardManifest, output: Path
) -> LargestBatchResult:
    """Searches, with a working folder next to ``output``."""
    started = datetime.now(UTC)
    kind, limit = memory_limit(spec, settings)
    source_tokens, target_tokens = (
        max(lengths) + (not manifest.texts)
        for lengths in (manifest.lengths.source, manifest.lengths.target)
    )
    order = BatchTrialOrder(
        spec=spec,
        output=output.with_suffix(""),
        command=reproducing_command(output),
        vocabulary=manifest.vocabulary,
        pairs=1,
        source_tokens=source_tokens,
        target_tokens=target_tokens,
        limit=round(limit * (1 - settings.margin)),
    )
    trials = Trials(order, settings.resolution)
    answer = find(trials, first_size(spec, source_tokens + target_tokens))
    return LargestBatchResult(
        **answer,
        variant=spec.variant,
        limit_kind=kind,
        limit_bytes=limit,
        margin=settings.margin,
        source_tokens=source_tokens,
        target_tokens=target_tokens,
        trials=trials.trials,
        provenance=collect(spec, order.command, started),
    )


class LargestBatchJob(TrainingJob):
    """Finds the largest batch of a variant that fits into memory."""

    kind = "largest_batch"

    settings: LargestBatch = LargestBatch()
    """largest_batch of the study."""

    def run(self, log_file: Path | None) -> None:
        spec = read_record(self.spec, RunSpec)
        manifest = read_record(self.data / "shards/train/manifest.json", ShardManifest)
        with workplace(self.output.with_suffix("")):
            result = measure(spec, self.settings, manifest, self.output)
            write_result(self.output, result.model_dump_json(indent=1) + "\n")


LEAST_ROOM = 64 * 2**20
"""Bytes that a process needs on a CPU even for the smallest model: with less, it would end without a
word."""


def limit_memory(device: torch.device, limit: int) -> None:
    """Limits this process to ``limit`` bytes: of writable memory, or of torch's allocator on a GPU.
    Allocating more fails as on a full device.

    Contexts, NCCL's buffers and other processes on the device may lower the limit further. Raises
    ValueError if the writable memory of the process itself leaves next to nothing of ``limit``.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        limit = min(limit, free + torch.cuda.memory_reserved(device))
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
    else:
        if (own := data_bytes()) + LEAST_ROOM > limit:
            raise ValueError(
                f"largest_batch.limit, less its margin, is {plain_size(limit)}, but a process has "
                f"{plain_size(own)} of writable memory before it trains: raise the limit, or leave it out"
            )
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def work(order: BatchTrialOrder, program: Program) -> None:
    """Takes the steps; the main rank writes the largest memory use of any rank."""
    spec, process = order.spec.compressing_at_once(), program.process
    device, training = process.device, spec.training
    torch.manual_seed(training.seed)
    if device.type == "cpu":
        limit_memory(device, order.limit)
    model = build_model(
        spec.model, order.vocabulary, isinstance(spec.batching.rows, PackedRows)
    ).to(device)
    strategy = build_strategy(spec.parallel, process, spec.machine, training.accumulation)
    trainer = equip(spec, process, strategy, model)
    trainer.module.train()
    for each in strategy.devices:
        if each.type == "cuda":  # DataParallel has several, with NCCL's buffers
            limit_memory(each, order.limit)
    _, shares = strategy.share
    rows = -(-order.pairs // (shares * training.accumulation.micro_batches))
    shape = BatchShape(
        rows=rows, source_tokens=order.source_tokens, target_tokens=order.target_tokens
    )
    batch = blank_batch([shape] * training.accumulation.micro_batches, device)
    used = 0

    def watch(moment: str) -> None:
        nonlocal used
        used = max(used, data_bytes())

    for _ in range(steps_of(spec)):
        watched_step(trainer, batch, watch)
    if device.type == "cuda":
        used = max(torch.cuda.max_memory_reserved(each) for each in strategy.devices)
    everyone = strategy.gather([used])
    if process.is_main:
        peak = int(max(value for (value,) in everyone))
        write_text(order.output / RESULT, json.dumps({"peak_bytes": peak}))
    strategy.synchronise()
    strategy.close()
