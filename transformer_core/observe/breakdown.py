"""The breakdown of a capture.

If a capture failed, or its files cannot be read, its breakdown has no devices and says why.
"""

from pathlib import Path

from schemas.errors import ConfigError
from schemas.results.profiles import Breakdown
from schemas.results.runs import Capture
from transformer_core.common.job import Job
from transformer_core.common.records import read_record
from transformer_core.trace.__main__ import write_results
from transformer_core.trace.breakdown.devices import KERNELS_SHOWN
from transformer_core.trace.breakdown.summary import break_down_reading
from transformer_core.trace.readers.files import Reading, read_files
from transformer_core.trace.terminal import page


def breakdown_of_capture(capture: Capture, folder: Path) -> tuple[Breakdown, Reading]:
    """The breakdown of a capture, whose files are in ``folder``, and its events."""
    files = [file for rank in capture.ranks for file in rank.files]
    status, reason = capture.status, capture.reason
    if status == "ok":
        try:
            reading = read_files(
                [folder / rank.files[0] for rank in capture.ranks],
                [rank.rank for rank in capture.ranks],
            )
            found = break_down_reading(reading, capture.variant, files, capture.profiler_reason)
            return found, reading
        except ConfigError as error:
            status, reason = "failed", str(error)
    found = Breakdown(
        name=capture.variant,
        status=status,
        reason=reason,
        profiler_reason=capture.profiler_reason,
        viewer_files=files,
    )
    return found, Reading()


class BreakdownJob(Job):
    """Breaks down the profile of a variant."""

    kind = "breakdown"

    capture: Path
    """capture.json of the profile."""
    events: Path
    """Event table to write, events.parquet."""
    output: Path
    """breakdown.json to write."""

    def run(self, log_file: Path | None) -> None:
        capture = read_record(self.capture, Capture)
        breakdown, reading = breakdown_of_capture(capture, self.capture.parent)
        write_results(breakdown, reading, self.output, self.events)
        print(page(breakdown, KERNELS_SHOWN))
