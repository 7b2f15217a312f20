"""Profiles of the script and of the recommended changes: a few steps each."""

import shutil
from pathlib import Path

from schemas.errors import ConfigError
from transformer_core.trace.__main__ import write_results
from transformer_core.trace.breakdown.summary import breakdown_of_files
from transformer_core.tune.answer import Profiled
from transformer_core.tune.coordinator import Session, SideEnded

Traces = tuple[list[Path], str]
"""The files of a profile, or why there are none."""


def traces_of(run: Session, side: str, steps: int, folder: Path) -> Traces:
    """Profiles a few ``steps`` of a side, and keeps its traces in ``folder``."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        return [Path(shutil.move(trace, folder)) for trace in run.profile(side, steps)], ""
    except (SideEnded, OSError) as error:
        return [], str(error)


def profiled(techniques: tuple[str, ...], traces: Traces) -> Profiled:
    """The breakdown of profiled steps, or why there is none."""
    files, reason = traces
    if not files:
        return Profiled(techniques, reason=reason)
    try:
        breakdown, reading = breakdown_of_files(files, files[0].parent.name)
        write_results(breakdown, reading, None, files[0].parent / "events.parquet")
    except (ConfigError, OSError) as error:
        return Profiled(techniques, reason=str(error))
    return Profiled(techniques, breakdown.model_dump(mode="json"), breakdown.reason or "")
