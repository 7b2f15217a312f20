"""Whether a run can fit into memory, by its prediction: said before it starts.

Nothing here imports torch: supervisors use it.
"""

import sys
from pathlib import Path

from pydantic import ValidationError

from schemas.config.run_spec import RunSpec
from schemas.results import PredictedMemory, Prediction
from transformer_core.common.progress import log
from transformer_core.parallel import nvml
from transformer_core.run.gpu_leases import visible_gpus
from transformer_core.run.oom import HINT, free_bytes, plain_size

CHANGES_NO_RESULT = True  # it warns in the log


def doubt(prediction: Prediction, available: int | None) -> str | None:
    """A warning if a process of the run needs more than ``available`` bytes of its device; None if
    it fits, or nobody knows."""
    needed = prediction.process_bytes or prediction.peak_bytes
    if needed is None or available is None or needed <= available:
        return None
    return (
        f"WARNING: {prediction.variant} will probably run out of memory: {plain_size(needed)} "
        f"predicted for each process, {plain_size(available)} available. {HINT}"
    )


def available_bytes(spec: RunSpec, device: str) -> int | None:
    """Memory that each process of a run could take now on a ``device`` of this kind; None where it
    is not known."""
    if device == "cpu":
        return free_bytes() // spec.processes_per_node
    visible = visible_gpus()
    free = [
        count
        for identity, count in nvml.free_by_uuid().items()
        if any(identity in seen for seen in visible)
    ]
    return min(free, default=None)


def warn_before(spec: RunSpec, predicted: Path) -> None:
    """Say in the log and on the terminal if ``spec`` does not fit by the prediction in a file, if
    there is one. A file that cannot be read is no reason to stop a run."""
    if not predicted.exists():
        return
    try:
        found = PredictedMemory.model_validate_json(predicted.read_text()).predictions
    except (OSError, ValidationError) as error:
        log.info("%s: no prediction of memory, %s", spec.variant, type(error).__name__)
        return
    for prediction in found:
        if prediction.variant != spec.variant or prediction.device is None:
            continue
        warning = doubt(prediction, available_bytes(spec, prediction.device))
        if warning is not None:
            log.warning("%s", warning)
            if sys.stderr.isatty():  # where the log alone has the lines
                print(warning, file=sys.stderr)
