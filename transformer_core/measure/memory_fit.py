"""Predicts whether a run, or the sides of a comparison together, fit into memory.

Nothing here imports torch, since supervisors use it.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from schemas.config.run_spec import RunSpec
from schemas.results import PredictedMemory, Prediction
from transformer_core.common.files import write_text
from transformer_core.common.progress import log
from transformer_core.parallel import nvml
from transformer_core.run.gpu_leases import gpus_of
from transformer_core.run.launcher import uses_gpus
from transformer_core.run.oom import HINT, free_bytes, plain_size

CHANGES_NO_RESULT = True  # it warns in the log


def doubt(prediction: Prediction, available: int | None) -> str | None:
    """A warning if a process of the run needs more than the ``available`` bytes of its device; None
    if it fits or its need is unknown."""
    needed = prediction.process_bytes or prediction.peak_bytes
    if needed is None or available is None or needed <= available:
        return None
    return (
        f"WARNING: {prediction.variant} will probably run out of memory: {plain_size(needed)} "
        f"predicted for each process, {plain_size(available)} available. {HINT}"
    )


def available_bytes(spec: RunSpec, device: str) -> int | None:
    """Bytes that each process of a run can currently allocate on this kind of ``device``; None if
    unknown."""
    if device == "cpu":
        return free_bytes() // spec.processes_per_machine
    return _least(nvml.memory_by_uuid("free"), spec)


def gpu_bytes(spec: RunSpec) -> int | None:
    """The memory of the smallest GPU of a run; None if unknown."""
    return _least(nvml.memory_by_uuid("total"), spec)


def _least(counts: Mapping[str, int], spec: RunSpec) -> int | None:
    used = [uuid.lower() for uuid in gpus_of(spec)]
    found = [count for identity, count in counts.items() if any(identity in one for one in used)]
    return min(found, default=None)


def warn_before(spec: RunSpec, predicted: Path) -> None:
    """Warns in the log and on the terminal if ``spec`` does not fit according to the prediction in a
    file. A missing or unreadable file does not stop the run."""
    if not predicted.exists():
        return
    try:
        found = PredictedMemory.model_validate_json(predicted.read_bytes()).predictions
    except (OSError, ValueError) as error:
        log.info("%s: no prediction of memory, %s", spec.variant, type(error).__name__)
        return
    for prediction in found:
        if prediction.variant != spec.variant or prediction.device is None:
            continue
        if warning := doubt(prediction, available_bytes(spec, prediction.device)):
            log.warning("%s", warning)
            if sys.stderr.isatty():  # log lines go only to the file then
                print(warning, file=sys.stderr)


Keeping = Literal["all", "state"]
"""The memory that a side keeps on its devices during the turns of others: everything, or only its
state (weights, optimizer state, buckets)."""

KEPT_PARTS = ("weights_bytes", "optimizer_bytes", "buckets_bytes")


class DoesNotFit(Exception):
    """The side ``side`` needs more memory than is available."""

    def __init__(self, side: str, reason: str) -> None:
        super().__init__(reason)
        self.side = side


def keeping(predictions: Mapping[str, Prediction], available: int | None) -> Keeping:
    """Decides what sides with these predictions, the reference's first, may keep between turns.

    If the ``available`` memory or a side's need is unknown, they keep everything. Raises DoesNotFit
    for the reference if it needs too much alone, and if the largest side does not fit together with
    the state of the others: for that side or, in place of the reference, for the one that keeps most.
    """
    whole = {side: found.process_bytes for side, found in predictions.items()}
    needs = [count for count in whole.values() if count is not None]
    if available is None or len(needs) < len(whole):
        return "all"
    reference = next(iter(predictions))
    if (needed := needs[0]) > available:
        raise DoesNotFit(reference, _sentence(f"{reference} alone", needed, available))
    if sum(needs) <= available:
        return "all"
    kept = {side: _kept_bytes(found) for side, found in predictions.items()}
    largest = max(predictions, key=lambda side: (whole[side] or 0) - kept[side])
    together = (whole[largest] or 0) + sum(kept.values()) - kept[largest]
    if together > available:
        what = f"{largest} with the weights and optimizer states of the others"
        # Without the reference, nothing would be compared.
        others = [side for side in kept if side != reference]
        side = largest if largest in others else max(others, key=lambda other: kept[other])
        fewer = " Fewer sides at a time (together) need less." if others[1:] else ""
        raise DoesNotFit(side, _sentence(what, together, available) + fewer)
    return "state"


def keeping_here(sides: Mapping[str, RunSpec], data: Path, folder: Path) -> Keeping:
    """:func:`keeping` for run specs by side, on this host's GPUs; "all" without GPUs."""
    if not any(map(uses_gpus, sides.values())):
        return "all"
    available = available_bytes(next(iter(sides.values())), "cuda")
    predictions = None if available is None else _predicted(sides, data, folder)
    return "all" if predictions is None else keeping(predictions, available)


def _predicted(
    sides: Mapping[str, RunSpec], data: Path, folder: Path
) -> dict[str, Prediction] | None:
    """Predicts in a separate process, since this one does not import torch; None if that fails."""
    files = [folder / f"{side}.spec.json" for side in sides]
    for file, spec in zip(files, sides.values(), strict=True):
        write_text(file, spec.canonical_json())
    output = folder / "predicted.json"
    order = {"specs": [*map(str, files)], "data": str(data), "output": str(output)}
    text = json.dumps({"kind": "predict_memory"} | order)
    try:
        job = [sys.executable, "-m", "transformer_core.run.job", "--order", text]
        subprocess.run(job, check=True)
        found = PredictedMemory.model_validate_json(output.read_bytes()).predictions
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.warning("whether the sides fit into memory is unknown: %s", error)
        return None
    return dict(zip(sides, found, strict=True))


def _kept_bytes(prediction: Prediction) -> int:
    parts = [sum(getattr(rank.anatomy, part) for part in KEPT_PARTS) for rank in prediction.ranks]
    return max(parts, default=0) + (prediction.context_bytes or 0)


def _sentence(what: str, needed: int, available: int) -> str:
    return (
        f"{what} is predicted to need {plain_size(needed)} of GPU memory, but "
        f"only {plain_size(available)} are free. {HINT}"
    )
