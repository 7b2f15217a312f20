"""What the devices do in a few steps of the winner, in a run of its own."""

import subprocess
import sys

from schemas.config.run_spec import RunSpec
from schemas.results import Breakdown
from transformer_core.common.files import write_text
from transformer_core.common.progress import log as progress_log
from transformer_core.common.records import read_record
from transformer_core.decide.search.trials import Bench


def profile_of(bench: Bench, spec: RunSpec) -> Breakdown | None:
    """The profile of ``spec``, made as those of the variants are; None if a job of it fails, which
    takes nothing from what the search has found."""
    folder = bench.folder / "profile"
    write_text(folder / "spec.json", spec.model_dump_json() + "\n")
    capture = {
        "spec": folder / "spec.json",
        "data": bench.data,
        "profiling": bench.study.profiling.model_dump_json(),
        "output": folder,
    }
    reading = {
        "capture": folder / "capture.json",
        "events": folder / "events.parquet",
        "output": folder / "breakdown.json",
    }
    for module, options in (
        ("transformer_core.observe.profile_job", capture),
        ("transformer_core.observe.breakdown", reading),
    ):
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-m", module, *words]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        if ended.returncode:
            progress_log.warning("search: the winner has no profile: %s", ended.stderr[-500:])
            return None
    return read_record(folder / "breakdown.json", Breakdown)
