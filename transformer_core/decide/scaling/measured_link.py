"""The link between the devices of a machine, from how long its all-reduces take."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from schemas.config.link import LinkModel
from schemas.results import CollectiveRun, MeasuredLink
from transformer_core.common.tables import read_table

MEASURED = "measured"
"""The name of the link that was measured, beside those that a study describes."""
FEWEST_SIZES = 3


def fit_link(sizes: Sequence[float], seconds: Sequence[float], devices: int) -> MeasuredLink | None:
    """The latency and bandwidth with which a ring explains the times of ``sizes`` bytes.

    seconds = 2 (p - 1) latency + 2 (p - 1) / p bytes / bandwidth. Least squares of the relative
    errors, so that small messages count as much as large ones, and neither is negative (Lawson and
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
        sizes=len(set(sizes)),
        worst_residual=float(np.abs(fitted / times - 1).max()),
    )


def as_model(link: MeasuredLink) -> LinkModel:
    """The fitted link as the model takes it."""
    return LinkModel(bandwidth=link.bandwidth, latency=link.latency)


def measured_link(collectives: Path) -> MeasuredLink | None:
    """The link that the measured all-reduces fit; null where there are none."""
    table = read_table(collectives)
    run = CollectiveRun.model_validate_json((table.schema.metadata or {})[b"study"])
    rows = [row for row in table.to_pylist() if row["collective"] == "all_reduce"]
    sizes, seconds = ([row[name] for row in rows] for name in ("bytes", "seconds"))
    return fit_link(sizes, seconds, run.world_size)
