"""Projects step times to more devices, and checks the projection against multi-process runs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, get_args

from pydantic import Field

from schemas.config.measurement import Projecting
from schemas.config.parallel import Central, Ddp, Fsdp, LinkModel
from schemas.config.run_spec import RunSpec
from schemas.results import (
    BestBucket,
    ComputeRecord,
    ComputeTimes,
    MeasuredLink,
    ProjectedCurve,
    ProjectedPoint,
    ProjectedStrategy,
    Projection,
    ProjectionCheck,
    TriedBucket,
    VariantResult,
)
from transformer_core.common.digests import write_result
from transformer_core.common.job import Job
from transformer_core.common.records import read_record
from transformer_core.decide.link_error import MEASURED, as_model, measured_link
from transformer_core.decide.step_model import Compute, step_seconds, worked_example
from transformer_core.parallel.link_times import PAYLOAD_SHARE
from transformer_core.study.reservations import work_of_a_device


def project(
    record: ComputeRecord,
    specs: Mapping[str, RunSpec],
    results: Mapping[str, VariantResult],
    link: MeasuredLink | None,
    settings: Projecting,
) -> Projection:
    """Curves, buckets and checks; without a measured device, only the reasons."""
    times = [t for t in record.times if t.status == "ok"]
    links = ({MEASURED: as_model(link)} if link else {}) | settings.links
    plain = next((t for t in times if t.micro_batches == 1), None)
    reason = None
    if not record.times:
        reason = "no variant of the study runs on several devices"
    elif not times:
        ended = record.times[0]
        reason = f"the work of one device could not be timed: {ended.status}, {ended.reason}"
    found = list(checks(specs, results, times, link))
    errors = [abs(check.error) for check in found if check.error is not None]
    return Projection(
        reason=reason,
        compute=plain or (times[0] if times else None),
        measured_link=link,
        curves=list(curves(times, links, settings.devices)),
        buckets=list(best_buckets(Compute.of(plain), links, settings.devices)) if plain else [],
        checks=found,
        median_error=median(errors) if errors else None,
        worst_error=max(errors, default=None),
        original=worked_example(),
    )


class ProjectionJob(Job):
    """Projects step times to more devices, and checks them against measured runs."""

    kind = "projection"

    compute: Path  # compute.json
    specs: list[Path] = Field(default=[])  # spec.json of each variant on several devices
    results: list[Path] = Field(default=[])  # metrics.json of the same variants
    collectives: Path  # collectives.parquet
    settings: Projecting  # projection of the study
    output: Path

    def run(self, log_file: Path | None) -> None:
        specs = [read_record(file, RunSpec) for file in self.specs]
        results = {r.variant: r for r in (read_record(f, VariantResult) for f in self.results)}
        found = project(
            read_record(self.compute, ComputeRecord),
            {spec.variant: spec for spec in specs},
            results,
            measured_link(self.collectives),
            self.settings,
        )
        write_result(self.output, found.model_dump_json(indent=1) + "\n")


DEFAULT_BUCKET_MB = 25.0

BUCKETS_MB = (0.25, 0.5, 1, 2, 5, 10, 25, 50, 100, 200, 400)  # sizes searched for the best
CURVE_BUCKETS_MB = (0.25, 1, 5, DEFAULT_BUCKET_MB, 100)  # sizes with their own curves

BUCKET_DEVICES = (2, 8, 64, 512)

EQUAL = 1.001  # steps that differ by less than this factor are equally good


def curves(
    times: Sequence[ComputeTimes], links: Mapping[str, LinkModel], most: int
) -> Iterator[ProjectedCurve]:
    """Every strategy with every bucket size on every link, from 1 device in powers of two up to
    ``most``."""
    for name, link in links.items():
        for strategy in get_args(ProjectedStrategy):
            accumulates = strategy.startswith("accumulation")
            found = next((t for t in times if (t.micro_batches > 1) == accumulates), None)
            if found is None:
                continue
            compute = Compute.of(found)
            sizes = (None,) if strategy in ("fsdp", "central") else CURVE_BUCKETS_MB
            for bucket_mb in sizes:
                # Strategies without buckets ignore their size.
                size = DEFAULT_BUCKET_MB if bucket_mb is None else bucket_mb
                points = [
                    _point(devices, step_seconds(strategy, compute, link, devices, size), compute)
                    for devices in (2**power for power in range(most.bit_length()))
                ]
                knees = (p.devices for p in points if p.exposed_seconds > p.step_seconds / 2)
                yield ProjectedCurve(
                    strategy=strategy,
                    link=name,
                    bucket_mb=bucket_mb,
                    points=points,
                    knee=next(knees, None),
                )


def _point(devices: int, seconds: float, compute: Compute) -> ProjectedPoint:
    alone = compute.alone
    return ProjectedPoint(
        devices=devices,
        step_seconds=seconds,
        exposed_seconds=seconds - alone,
        efficiency=alone / seconds,
    )


def best_buckets(
    compute: Compute, links: Mapping[str, LinkModel], most: int
) -> Iterator[BestBucket]:
    """DistributedDataParallel's best bucket size on each link, for several numbers of devices."""
    for name, link in links.items():
        for devices in (count for count in BUCKET_DEVICES if count <= most):
            seconds = {
                size: step_seconds("ddp", compute, link, devices, size) for size in BUCKETS_MB
            }
            shortest = min(seconds.values())
            best = next(size for size in BUCKETS_MB if seconds[size] <= EQUAL * shortest)
            yield BestBucket(
                link=name,
                devices=devices,
                bucket_mb=best,
                step_seconds=seconds[best],
                default_step_seconds=seconds[DEFAULT_BUCKET_MB],
                tried=[
                    TriedBucket(bucket_mb=size, step_seconds=value)
                    for size, value in seconds.items()
                ],
            )


def checks(
    specs: Mapping[str, RunSpec],
    results: Mapping[str, VariantResult],
    times: Sequence[ComputeTimes],
    measured: MeasuredLink | None,
) -> Iterator[ProjectionCheck]:
    """Every multi-process variant that ran, predicted and measured."""
    by_work = {work_of_a_device(specs[t.variant]): t for t in times if t.status == "ok"}
    for name, spec in specs.items():
        result = results[name]
        if spec.world_size > 1 and result.status == "ok" and result.windows:
            yield _check(spec, result, by_work.get(work_of_a_device(spec)), measured)


def _check(
    spec: RunSpec, result: VariantResult, times: ComputeTimes | None, measured: MeasuredLink | None
) -> ProjectionCheck:
    seconds = median(window.step_seconds for window in result.windows)
    link, name = _link_of(spec, measured)
    strategy, manner, note = _strategy_of(spec)
    if not note and link is None:
        note = "the link between its processes was not measured"
    elif not note and times is None:
        note = "its work on one device was not measured"
    predicted = None
    if strategy is not None and link is not None and times is not None:
        hook = spec.parallel.message_hook
        devices = (hook.link.devices if hook and hook.link else None) or spec.world_size
        gloo = times.topology is not None and times.topology.device == "cpu"
        manner["backend"] = "gloo" if gloo else "nccl"
        predicted = step_seconds(strategy, Compute.of(times), link, devices, **manner)
    return ProjectionCheck(
        variant=spec.variant,
        devices=spec.world_size,
        link=name,
        strategy=strategy,
        predicted_seconds=predicted,
        measured_seconds=seconds,
        error=None if predicted is None else predicted / seconds - 1,
        note=note,
    )


def _strategy_of(spec: RunSpec) -> tuple[ProjectedStrategy | None, dict[str, Any], str]:
    """Strategy of a spec and its options as :func:`step_seconds` takes them, and why if none."""
    parallel, accumulation = spec.parallel, spec.training.accumulation
    if isinstance(parallel, Fsdp):
        if parallel.bf16:
            return None, {}, "the model covers FSDP in 32 bits only"
        return "fsdp", {"reshard": parallel.reshard_after_forward}, ""
    if isinstance(parallel, Central):
        return "central", {"local_loss": parallel.local_loss}, ""
    if not isinstance(parallel, Ddp):
        return None, {}, f"the model does not cover {parallel.kind}"
    payload = parallel.hook.payload if parallel.hook else 1.0
    if payload is None:
        kind = parallel.hook.kind  # type: ignore[union-attr]
        return None, {}, f"the model does not cover the hook {kind}"
    manner = {"bucket_mb": parallel.bucket_mb, "payload": payload, "overlap": parallel.overlap}
    if accumulation.micro_batches == 1:
        return "ddp" if parallel.overlap else "ddp_no_overlap", manner, ""
    every = accumulation.synchronise == "every"
    return "accumulation_sync" if every else "accumulation_no_sync", manner, ""


def _link_of(spec: RunSpec, measured: MeasuredLink | None) -> tuple[LinkModel | None, str]:
    """The link between the processes of a run, and its name."""
    if (hook := spec.parallel.message_hook) is not None and hook.link is not None:
        return hook.link, "emulated"
    if spec.machine.link is not None:
        return LinkModel(bandwidth=PAYLOAD_SHARE * spec.machine.link.bandwidth), "limited"
    # A link between hosts is another than that within one.
    if measured is None or spec.machine.nodes != measured.nodes:
        return None, MEASURED
    return as_model(measured), MEASURED
