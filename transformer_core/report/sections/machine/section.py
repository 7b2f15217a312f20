"""What the section on the machine shows beside its description."""

from dataclasses import dataclass
from typing import Any

from transformer_core.report.inputs import Results
from transformer_core.report.machine_inputs import (
    read_collectives,
    read_limits,
    read_utilisation,
)


@dataclass(frozen=True)
class CollectiveRow:
    """One collective operation at the ends of its curve."""

    name: str
    smallest_bytes: int
    smallest_seconds: float
    largest_bytes: int
    algorithm_bandwidth: float
    bus_bandwidth: float


def machine_context(results: Results) -> dict[str, Any]:
    """The limits of the machine and how far the variants come."""
    run, table = read_collectives(results)
    return {
        "roofline": read_limits(results),
        "collective_run": run,
        "collectives": [
            _ends(str(name), of_one.sort_values("bytes"))
            for name, of_one in table.groupby("collective", sort=False)
        ],
        "utilisation": read_utilisation(results),
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
