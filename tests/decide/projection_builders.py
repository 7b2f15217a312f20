"""The work of a device with exactly known times."""

from typing import Any

from schemas.results import ComputeTimes, ReadyGradient
from tests.records import record
from transformer_core.decide.step_model import MIB, Compute

LAYERS = 4
FORWARD, BACKWARD, UPDATE = 1.0, 2.0, 0.5


def compute_times(micro_batches: int = 1, variant: str = "ddp", **changes: Any) -> ComputeTimes:
    """Four layers of 1 MiB; backward completes the gradients of one every half second."""
    values: dict[str, Any] = {
        "variant": variant,
        "status": "ok",
        "micro_batches": micro_batches,
        "forward_seconds": FORWARD,
        "backward_seconds": BACKWARD,
        "update_seconds": UPDATE,
        "other_seconds": 0.0,
        "gradients": [
            ReadyGradient(bytes=MIB, seconds=BACKWARD * (number + 1) / LAYERS, layer=number)
            for number in range(LAYERS)
        ],
        "source_tokens": 100.0,
        "target_tokens": 100.0,
        "vocabulary": 500,
    }
    return record(ComputeTimes, **(values | changes))


def compute(micro_batches: int = 1) -> Compute:
    return Compute.of(compute_times(micro_batches))
