"""Device utilisation of every variant, and the headroom of its steps.

Model FLOPs per second, relative to the rate that the devices reach in matrix products of the same
format, and to the vendor's peak. The FLOPs are exact: the batches of the timed steps follow from
the lengths of the corpus, and their counts must match those recorded by the run.

For the headroom, a timed step is divided among operator classes in the proportions of the profile.
Each class is compared with the time for its products at the measured rate of matrix products, and
with the time for its bytes, read and written by one operator after another, at the measured
bandwidth; the longer of the two is what perfect kernels for the same operators would take
(Williams, Waterman and Patterson, Roofline, 2009).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from schemas.config.model import DecoderOnly, HuggingFaceCausal, ImportedModel
from schemas.config.run_spec import AnyTrained, RunSpec
from schemas.errors import ConfigError, ConfigProblem
from schemas.results import (
    Breakdown,
    Interval,
    Repeat,
    Roofline,
    Session,
    Topology,
    Utilisation,
    VariantResult,
)
from transformer_core.common.digests import write_result
from transformer_core.common.job import Job
from transformer_core.common.records import read_record
from transformer_core.common.tables import read_table
from transformer_core.data.arrays import group_sums
from transformer_core.data.batching.epoch_plan import plan_epoch
from transformer_core.data.batching.window_rows import WindowRows
from transformer_core.data.sharding.shard_store import PairStore, open_shards
from transformer_core.decide.intervals import median_interval
from transformer_core.study.reservations import layer_weights


class Lengths(NamedTuple):
    """Sums over the pairs (or padded rows) of each of n batches; all [n]."""

    sources: NDArray[np.int64]  # source tokens
    targets: NDArray[np.int64]  # target tokens
    source_squares: NDArray[np.int64]  # source tokens of a pair times themselves
    target_squares: NDArray[np.int64]  # target tokens of a pair times themselves
    products: NDArray[np.int64]  # source tokens times target tokens of a pair


def non_padding(rows: WindowRows) -> Lengths:
    """The lengths of the pairs in every global batch of a window."""
    s, t, starts = rows.sources, rows.targets, rows.batch_starts
    return Lengths(*(group_sums(values, starts) for values in (s, t, s * s, t * t, s * t)))


def padded(rows: WindowRows) -> Lengths:
    """The same for the rows as computed: each is as long as the longest of its part."""
    b, s, t = rows.shapes.T
    parts = len(rows.shapes) // (len(rows.batch_starts) - 1)
    return Lengths(
        *((b * values).reshape(-1, parts).sum(axis=1) for values in (s, t, s * s, t * t, s * t))
    )


def unknown_layers(model: AnyTrained) -> str | None:
    """Why the FLOPs of a model cannot be counted: it is a user's own, or a language model of another
    library. None if they can."""
    if isinstance(model, ImportedModel):
        return f"the layers of {model.factory} are not known"
    if isinstance(model, HuggingFaceCausal):
        return f"the layers of {model.architecture} are not known"
    return None


def training_flops(model: AnyTrained, vocabulary: int, lengths: Lengths) -> NDArray[np.float64]:
    """[n] FLOPs of forward and backward for each batch.

    Raises ValueError for a model with :func:`unknown_layers`.
    """
    return 3.0 * forward_flops(model, vocabulary, lengths)


def forward_flops(model: AnyTrained, vocabulary: int, lengths: Lengths) -> NDArray[np.float64]:
    """[n] FLOPs of the forward pass for each batch; see :func:`training_flops`."""
    if isinstance(model, ImportedModel | HuggingFaceCausal):
        raise ValueError(unknown_layers(model))
    if isinstance(model, DecoderOnly):
        each = layer_weights(model) * lengths.targets + 2 * model.d_model * lengths.target_squares
        products = model.layers * each + model.d_model * vocabulary * lengths.targets
        return products.astype(np.float64) * 2.0
    d, inner = model.d_model, model.d_ff
    # Multiplications: weights per token, then scores and weighted values per pair of tokens.
    encoder = (4 * d * d + 2 * d * inner) * lengths.sources + 2 * d * lengths.source_squares
    decoder = (
        (6 * d * d + 2 * d * inner) * lengths.targets
        + 2 * d * d * lengths.sources  # keys and values of the memory
        + 2 * d * (lengths.target_squares + lengths.products)
    )
    output = d * vocabulary * lengths.targets
    total = model.encoder_layers * encoder + model.decoder_layers * decoder + output
    return 2.0 * total


class StepFlops(NamedTuple):
    """FLOPs of the steps of a run, by optimizer step from 1 on; [steps + 1], NaN at 0."""

    model: NDArray[np.float64]  # FLOPs on non-padding tokens
    with_padding: NDArray[np.float64]  # FLOPs on all tokens


def feed_parts(spec: RunSpec) -> int:
    """Number of separately padded parts of a global batch.

    If one process reads for all (central, DataParallel), these are its micro-batches; the devices
    get rows of equal width.
    """
    readers = 1 if spec.parallel.central else spec.world_size
    return readers * spec.training.accumulation.micro_batches


def step_flops(spec: RunSpec, store: PairStore, steps: pd.DataFrame, file: Path) -> StepFlops:
    """The FLOPs of every step listed in ``steps``, which was read from ``file``.

    Raises ConfigError if its token counts do not match the batches.
    """
    vocabulary, parts = store.manifest.vocabulary, feed_parts(spec)
    found = StepFlops(*(np.full(int(steps["step"].max()) + 1, np.nan) for _ in range(2)))
    for epoch, of_epoch in steps.groupby("epoch"):
        wanted = of_epoch.set_index("batch")
        first, last = int(wanted.index.min()), int(wanted.index.max())
        seed = spec.training.seed
        for window in plan_epoch(store, spec.batching, seed, int(str(epoch)), first):
            rows = WindowRows(store, window, parts, spec.batching.rows)
            batches = {
                "tokens_planned": rows.tokens,
                "padded_tokens_planned": rows.padded_tokens,
                "model": training_flops(spec.model, vocabulary, non_padding(rows)),
                "with_padding": training_flops(spec.model, vocabulary, padded(rows)),
            }
            index = range(window.first_batch, window.first_batch + len(window))
            there = wanted.join(pd.DataFrame(batches, index=index), how="inner")
            for name in ("tokens", "padded_tokens"):
                wrong = there[there[name] != there[f"{name}_planned"]]
                if len(wrong):
                    raise _other_batches(file, name, wrong.iloc[0])
            found.model[there["step"]] = there["model"]
            found.with_padding[there["step"]] = there["with_padding"]
            if window.first_batch + len(window) > last:
                break
    return found


def rates(repeat: Repeat, flops: NDArray[np.float64]) -> list[float]:
    """FLOPs per second of every timed window."""
    return [
        float(flops[window.first_step : window.last_step + 1].sum()) / window.seconds
        for window in repeat.windows
    ]


def devices_and_threads(spec: RunSpec, topology: Topology) -> tuple[int, int | None]:
    """Devices of a run, and on CPUs the threads of each."""
    if topology.device == "cuda":
        return spec.machine.nodes * spec.machine.devices_per_node, None
    # All threads of a host form one device; with an emulated link there is one host.
    devices = 1 if topology.link else topology.nodes
    return devices, topology.world_size // devices * topology.threads_per_rank


def ceiling(
    spec: RunSpec, topology: Topology, roofline: Roofline
) -> tuple[float | None, str | None, float | None]:
    """Measured FLOPs per second of all devices of a run, the reason if there are none, and the
    vendor's."""
    if roofline.status != "ok":
        return None, roofline.reason, None
    if roofline.kind != topology.device:
        return None, f"the limits are those of a {roofline.kind} device", None
    wanted = spec.numbers.products
    devices, threads = devices_and_threads(spec, topology)
    rate = next((r for r in roofline.matrix if (r.format, r.threads) == (wanted, threads)), None)
    peak = roofline.vendor.flops_per_second.get(wanted) if roofline.vendor else None
    vendor = peak * devices if peak else None
    if rate is None:
        return None, f"the limits were not measured with {threads} threads", vendor
    if rate.flops_per_second is None:
        return None, rate.reason, vendor
    return rate.flops_per_second * devices, None, vendor


def utilisation(
    spec: RunSpec,
    result: VariantResult,
    steps: Sequence[Path],
    store: PairStore,
    roofline: Roofline,
) -> Utilisation:
    """The utilisation of one variant; ``steps`` are the steps.parquet of its repeats."""
    reason = result.reason
    if result.status == "ok":
        reason = unknown_layers(spec.model)
    topology = next((r.topology for r in result.repeats if r.topology), None)
    model = with_padding = above = why = peak = None
    if reason is None and topology is not None:
        flops = [step_flops(spec, store, read_table(path).to_pandas(), path) for path in steps]
        runs = list(zip(result.repeats, flops, strict=True))
        model = median_interval([rates(run, found.model) for run, found in runs])
        with_padding = median_interval([rates(run, found.with_padding) for run, found in runs])
        above, why, peak = ceiling(spec, topology, roofline)
    return Utilisation(
        variant=spec.variant,
        status=result.status,
        reason=reason,
        format=spec.numbers.products if model else None,
        flops_per_second=model,
        ceiling=above,
        ceiling_reason=why,
        of_ceiling=_over(model, above),
        padded_of_ceiling=_over(with_padding, above),
        of_vendor_peak=_over(model, peak),
    )


def _over(interval: Interval | None, by: float | None) -> Interval | None:
    return interval.mapped(lambda rate: rate / by) if interval and by is not None else None


def _other_batches(file: Path, name: str, row: pd.Series) -> ConfigError:
    problem = ConfigProblem(
        str(file),
        f"{name} of step {int(row['step'])}",
        int(row[name]),
        f"the batch has {int(row[f'{name}_planned'])}: the run saw other batches",
        f"run it again: snakemake --cores all --force {file}",
    )
    return ConfigError([problem])


@dataclass(frozen=True)
class Part:
    """One class of operators in a step; all in seconds."""

    name: str
    seconds: float  # time of the class within the step
    products: float | None
    """Time for its floating-point operations at the measured rate; None if unknown."""
    traffic: float | None  # time for its bytes at the measured bandwidth; None if unknown

    @property
    def least(self) -> float | None:
        """Minimum time by both limits; None if neither is known."""
        known = [time for time in (self.products, self.traffic) if time is not None]
        return max(known, default=None)

    @property
    def left(self) -> float | None:
        """Time beyond that minimum; negative if cached bytes make it faster."""
        return None if self.least is None else self.seconds - self.least


@dataclass(frozen=True)
class Headroom:
    """A step and its parts."""

    name: str
    seconds: float  # duration of the timed step
    parts: list[Part]  # parts by class, longest first
    idle: float  # seconds of the step in which no operator runs

    @property
    def products(self) -> float:
        """Seconds needed for all floating-point operations."""
        return sum(part.products or 0.0 for part in self.parts)

    @property
    def traffic(self) -> float:
        """Seconds needed for all bytes."""
        return sum(part.traffic or 0.0 for part in self.parts)


def topology_of(sessions: Sequence[Session], side: str) -> Topology | None:
    """Devices and processes of ``side``."""
    sides = (found for session in sessions for found in session.sides if found.name == side)
    return next((found.topology for found in sides if found.topology), None)


def headroom(
    name: str,
    spec: RunSpec,
    topology: Topology,
    seconds: float,
    profile: Breakdown,
    roofline: Roofline,
) -> Headroom | None:
    """The limits of a step of ``seconds``; None if the profile has no events, or the rate of
    matrix products was not measured."""
    rate, _, _ = ceiling(spec, topology, roofline)
    summary = profile.summary
    # Of all devices of the run; on a CPU, for the threads of all its processes.
    devices, threads = devices_and_threads(spec, topology)
    rates = [m.bytes_per_second for m in roofline.memory if m.threads == threads]
    total = sum(use.time_ns for use in summary.operators) if summary else 0
    if summary is None or rate is None or not rates or not total:
        return None
    bandwidth = max(rates) * devices
    steps = max(1, len(profile.devices[0].steps))
    idle = seconds * (summary.idle or 0.0)
    parts = [
        Part(
            name=use.operator_class,
            seconds=(seconds - idle) * use.time_ns / total,
            products=None if use.flops is None else use.flops / steps / rate,
            traffic=None if use.bytes is None else use.bytes / steps / bandwidth,
        )
        for use in summary.operators
    ]
    parts.sort(key=lambda part: -part.seconds)
    return Headroom(name, seconds, parts, idle)


class UtilisationJob(Job):
    """Compares the arithmetic of every variant with the measured limits of the devices."""

    kind = "utilisation"

    runs: list[Path]  # folders of the variants: spec.json, metrics.json, repeat-<k>/steps.parquet
    manifest: Path  # manifest.json of the training shards
    roofline: Path  # roofline.json of the machine
    output: Path

    def run(self, log_file: Path | None) -> None:
        store = open_shards(self.manifest)
        roofline = read_record(self.roofline, Roofline)
        found = []
        for folder in self.runs:
            spec = read_record(folder / "spec.json", RunSpec)
            result = read_record(folder / "metrics.json", VariantResult)
            steps = [folder / f"repeat-{r.repeat}" / "steps.parquet" for r in result.repeats]
            found.append(utilisation(spec, result, steps, store, roofline))
        lines = ",\n".join(record.model_dump_json() for record in found)
        write_result(self.output, f"[\n{lines}\n]\n")
