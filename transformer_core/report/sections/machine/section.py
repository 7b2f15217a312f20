"""What the section on the machine shows beside its description."""

from dataclasses import dataclass
from typing import Any

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.sections.machine.read import utilisation_in_turns


@dataclass(frozen=True)
class CollectiveRow:
    """One collective operation at the ends of its curve."""

    name: str
    smallest_bytes: int
    smallest_seconds: float
    largest_bytes: int
    algorithm_bandwidth: float
    bus_bandwidth: float


def context(results: StudyResults) -> dict[str, Any]:
    """The limits of the machine and how far the variants come."""
    run, table = results.collectives or (None, None)
    rated = [rate for rate in results.roofline.matrix if rate.flops_per_second]
    return {
        "best": max(rated, key=lambda rate: rate.flops_per_second or 0.0, default=None),
        "roofline": results.roofline,
        "collective_run": run,
        "collectives": [
            _ends(str(name), of_one.sort_values("bytes"))
            for name, of_one in (() if table is None else table.groupby("collective", sort=False))
        ],
        "utilisation": utilisation_in_turns(results),
    }


def _ends(name: str, curve: Any) -> CollectiveRow:
    first, last = curve.iloc[0], curve.iloc[-1]
    return CollectiveRow(
        name=name,
        smallest_bytes=int(first["bytes"]),
        smallest_seconds=float(first["seconds"]),
        largest_bytes=int(last["bytes"]),
        algorithm_bandwidth=float(last["algorithm_bandwidth"]),
        bus_bandwidth=float(last["bus_bandwidth"]),
    )
