"""The breakdown of a capture.

A capture that ended otherwise than ok, or left files that cannot be read, has a breakdown without
devices that says why.
"""

from pathlib import Path

from pydantic import ValidationError

from schemas.errors import ConfigError, from_validation
from schemas.results.profiles import Breakdown
from schemas.results.runs import Capture
from transformer_core.common import digests
from transformer_core.common.job import Job
from transformer_core.trace.__main__ import write_results
from transformer_core.trace.breakdown.devices import KERNELS_SHOWN
from transformer_core.trace.breakdown.summary import break_down_reading
from transformer_core.trace.events.event_table import Events
from transformer_core.trace.events.process import unusable
from transformer_core.trace.readers.files import read_files
from transformer_core.trace.terminal import page


def breakdown_of_capture(capture: Capture, folder: Path) -> tuple[Breakdown, Events]:
    """The breakdown of a capture, whose files lie in ``folder``, and its event table."""
    files = [file for rank in capture.ranks for file in rank.files]
    status, reason = capture.status, capture.reason
    if status == "ok":
        try:
            reading = read_files(
                [folder / rank.files[0] for rank in capture.ranks],
                [rank.rank for rank in capture.ranks],
            )
            found = break_down_reading(reading, capture.variant, files, capture.profiler_reason)
            return found, reading.events
        except ConfigError as error:
            status, reason = "failed", str(error)
    found = Breakdown(
        name=capture.variant,
        status=status,
        reason=reason,
        profiler_reason=capture.profiler_reason,
        viewer_files=files,
    )
    return found, Events()


def read_capture(path: Path) -> Capture:
    try:
        digests.check(path)
        return Capture.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise unusable(path, reason, f"make it again with snakemake --cores all {path}") from None
    except ValidationError as error:
        raise from_validation(error, Capture, str(path)) from None


class BreakdownJob(Job):
    """To break down the profile of a variant."""

    kind = "breakdown"

    capture: Path
    """capture.json of the profile."""
    events: Path
    """Event table to write, events.parquet."""
    output: Path
    """breakdown.json to write."""

    def run(self, log_file: Path | None) -> None:
        breakdown, events = breakdown_of_capture(read_capture(self.capture), self.capture.parent)
        write_results(breakdown, events, self.output, self.events)
        print(page(breakdown, KERNELS_SHOWN))
