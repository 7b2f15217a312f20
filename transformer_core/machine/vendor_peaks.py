"""The rates of GPUs in their vendors' documents."""

import csv
from collections.abc import Iterator
from pathlib import Path

from schemas.results import NumberFormat, VendorPeak
from transformer_core.parallel import nvml

FORMATS: tuple[NumberFormat, ...] = ("fp32", "tf32", "bf16", "fp16")
USUAL_SHARE = 0.75
"""Share of a vendor's peak in 32 bits that large products reach; an H100 reached 51 of 67 TFLOP/s."""
UNKNOWN_GPU = 1.5e13
"""Operations per second in 32 bits of a GPU that is not in the table."""


def vendor_peaks() -> Iterator[VendorPeak]:
    """All devices in the table, with the rates of formats that their hardware supports."""
    with Path(__file__).with_suffix(".csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            yield VendorPeak(
                device=row["device"],
                flops_per_second={f: float(row[f]) * 1e12 for f in FORMATS if row[f]},
                bytes_per_second=float(row["gigabytes per second"]) * 1e9,
                source=row["source"],
            )


def vendor_peak(device: str) -> VendorPeak | None:
    """The peak of the device with exactly this product name; None if unknown."""
    return next((peak for peak in vendor_peaks() if peak.device == device), None)


def expected_rate_of_gpu() -> float | None:
    """Operations per second in 32 bits to expect of this host's first GPU; None without one
    that jobs see. It does not import torch, so whoever plans a study can call it."""
    gpus, _ = nvml.gpus()
    if not gpus or not nvml.visible_gpus():
        return None
    peak = vendor_peak(gpus[0].name)
    return USUAL_SHARE * (peak.flops_per_second["fp32"] if peak else UNKNOWN_GPU)
