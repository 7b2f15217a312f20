"""Measures how far the emulated link is from the real one, in runs that alternate between them."""

from collections.abc import Sequence
from math import exp
from pathlib import Path
from statistics import median

import numpy as np
from pydantic import Field
from scipy.optimize import nnls

from schemas.config.parallel import LinkModel, show_bandwidth
from schemas.results import CollectiveRun, LinkError, LinkTrial, MeasuredLink, PairedRun
from transformer_core.common.digests import write_result
from transformer_core.common.job import Job
from transformer_core.common.progress import log
from transformer_core.common.records import read_record
from transformer_core.common.tables import read_table
from transformer_core.measure.session_ratio import log_ratios, step_seconds

REAL, EMULATED = "real_link", "emulated_link"  # names of the two sides of a trial


def judge(name: str, bandwidth: float, run: PairedRun) -> LinkTrial:
    """Judges one configuration; ``name`` names the change, ``bandwidth`` is in bits per second."""
    links = [
        side.topology.link
        for session in run.sessions
        for side in session.sides
        if side.name == REAL and side.topology is not None
    ]
    status, reason = run.status, run.reason
    if links and any(link is None or link.kind != "namespaces" for link in links):
        status, reason = "unsupported", "this machine cannot create a limited link"
    real = emulated = error = None
    if status == "ok":
        ratios = [value for one in run.sessions for value in log_ratios(one.rounds, run.pair)]
        real, emulated = (step_seconds(run.sessions, side) for side in (REAL, EMULATED))
        # These are throughput ratios: a longer step means a smaller ratio.
        error, reason = exp(-median(ratios)) - 1, None
    return LinkTrial(
        name=name,
        bandwidth=bandwidth,
        status=status,
        reason=reason,
        real_seconds=real,
        emulated_seconds=emulated,
        error=error,
    )


def summarise(trials: Sequence[LinkTrial]) -> LinkError:
    """All trials, with the median and the largest error."""
    errors = [abs(trial.error) for trial in trials if trial.error is not None]
    return LinkError(
        trials=list(trials),
        median_error=median(errors) if errors else None,
        worst_error=max(errors, default=None),
    )


class LinkErrorJob(Job):
    """The error of the emulated link against the real one."""

    kind = "link_error"

    trials: list[tuple[str, float, Path]] = Field(min_length=1)
    """For each trial: the change, the bits per second, and the record of its runs on both links."""
    output: Path

    def run(self, log_file: Path | None) -> None:
        trials = [
            judge(name, bandwidth, read_record(file, PairedRun))
            for name, bandwidth, file in self.trials
        ]
        for found in trials:
            said = "not measured" if found.error is None else f"{100 * found.error:+.1f} %"
            log.info("%s at %s: %s", found.name, show_bandwidth(found.bandwidth), said)
        write_result(self.output, summarise(trials).model_dump_json(indent=1) + "\n")


MEASURED = "measured"  # name of the measured link, as opposed to those that a study describes
FEWEST_SIZES = 3


def fit_link(
    sizes: Sequence[float], seconds: Sequence[float], devices: int, nodes: int = 1
) -> MeasuredLink | None:
    """Fit the latency and bandwidth of a ring to the times for ``sizes`` bytes.

    seconds = 2 (p - 1) latency + 2 (p - 1) / p bytes / bandwidth. Least squares of the relative
    errors, so that small messages count as much as large ones, with both nonnegative (Lawson and
    Hanson, Solving Least Squares Problems, 1974). Null with fewer than three sizes or one device.
    """
    if len(set(sizes)) < FEWEST_SIZES or devices < 2:
        return None
    steps = 2 * (devices - 1)
    bits = 8 * np.asarray(sizes) / devices
    times = np.asarray(seconds)
    matrix = steps * np.column_stack([np.ones_like(bits), bits])
    (latency, per_bit), _ = nnls(matrix / times[:, None], np.ones_like(times))
    if per_bit == 0:
        return None
    fitted = matrix @ np.array([latency, per_bit])
    return MeasuredLink(
        bandwidth=float(1 / per_bit),
        latency=float(latency),
        world_size=devices,
        nodes=nodes,
        sizes=len(set(sizes)),
        worst_residual=float(np.abs(fitted / times - 1).max()),
    )


def as_model(link: MeasuredLink) -> LinkModel:
    """The fitted link in the form used by the model."""
    return LinkModel(bandwidth=link.bandwidth, latency=link.latency)


def measured_link(collectives: Path) -> MeasuredLink | None:
    """The link fitted to the measured all-reduces; null if there are none."""
    table = read_table(collectives)
    run = CollectiveRun.model_validate_json((table.schema.metadata or {})[b"study"])
    rows = [row for row in table.to_pylist() if row["collective"] == "all_reduce"]
    sizes, seconds = ([row[name] for row in rows] for name in ("bytes", "seconds"))
    return fit_link(sizes, seconds, run.world_size, run.nodes)
