"""The lines on what is beside the device, and what all jobs have said last."""

from collections.abc import Iterator
from pathlib import Path

from schemas.results.gpu_check import Check, DeviceFacts, LogEnd
from transformer_core.decide.gpu_check.outcomes import judged, line, outcome_of

LOG_CHARACTERS = 2000
"""Characters that the page shows of a log: the end, where the error is."""


def device(found: DeviceFacts) -> Iterator[Check]:
    """What beside the device should work does."""
    for one in found.facts:
        outcome = judged(bool(one.holds)) if one.status == "ok" else outcome_of(one.status)
        file = "gpu_check/device.json"
        yield line(one.name, one.expected, outcome, one.found, one.reason, file)


def ends_of_logs(results: Path) -> Iterator[LogEnd]:
    """Of all jobs that have said something."""
    for path in sorted((results / "logs").rglob("*.log")):
        text = path.read_text(errors="replace").strip()
        if text:
            yield LogEnd(file=f"results/{path.relative_to(results)}", text=text[-LOG_CHARACTERS:])
