"""Step times by number of devices: every strategy on every link, and the best bucket sizes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from schemas.config.link import LinkModel
from schemas.results import (
    BestBucket,
    ComputeTimes,
    ProjectedCurve,
    ProjectedPoint,
    ProjectedStrategy,
    TriedBucket,
)
from transformer_core.decide.scaling.step_model import Compute, step_seconds

DEFAULT_BUCKET_MB = 25.0

BUCKETS_MB = (0.25, 0.5, 1, 2, 5, 10, 25, 50, 100, 200, 400)
"""Sizes of which the best is looked for."""

CURVE_BUCKETS_MB = (0.25, 1, 5, DEFAULT_BUCKET_MB, 100)
"""Sizes with a curve of their own."""

BUCKET_DEVICES = (2, 8, 64, 512)

EQUAL = 1.001
"""Steps that differ by less than this factor are equally good."""


def curves(
    times: Sequence[ComputeTimes], links: Mapping[str, LinkModel], most: int
) -> Iterator[ProjectedCurve]:
    """Every strategy with every bucket size on every link, from 1 device on in powers of two up
    to ``most``."""
    for name, link in links.items():
        for strategy in get_args(ProjectedStrategy):
            accumulates = strategy.startswith("accumulation")
            found = [t for t in times if (t.micro_batches > 1) == accumulates]
            if not found:
                continue
            compute = Compute.of(found[0])
            sizes = (None,) if strategy in ("fsdp", "central") else CURVE_BUCKETS_MB
            for bucket_mb in sizes:
                yield _curve(strategy, name, link, compute, most, bucket_mb)


def _curve(
    strategy: ProjectedStrategy,
    name: str,
    link: LinkModel,
    compute: Compute,
    most: int,
    bucket_mb: float | None,
) -> ProjectedCurve:
    points = []
    devices = 1
    while devices <= most:
        # Strategies without buckets take no notice of their size.
        size = DEFAULT_BUCKET_MB if bucket_mb is None else bucket_mb
        seconds = step_seconds(strategy, compute, link, devices, size)
        points.append(
            ProjectedPoint(
                devices=devices,
                step_seconds=seconds,
                exposed_seconds=seconds - compute.alone,
                efficiency=compute.alone / seconds,
            )
        )
        devices *= 2
    return ProjectedCurve(
        strategy=strategy,
        link=name,
        bucket_mb=bucket_mb,
        points=points,
        knee=next((p.devices for p in points if p.exposed_seconds > p.step_seconds / 2), None),
    )


def best_buckets(
    compute: Compute, links: Mapping[str, LinkModel], most: int
) -> Iterator[BestBucket]:
    """The best bucket size of DistributedDataParallel on each link, for some numbers of devices."""
    for name, link in links.items():
        for devices in BUCKET_DEVICES:
            if devices > most:
                continue
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
