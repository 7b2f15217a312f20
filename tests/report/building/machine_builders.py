"""The limits of a machine and the utilisation of its variants, for the report."""

import json
from pathlib import Path

from hostile import EVIL, write

from schemas.results import (
    Bandwidth,
    Interval,
    MatrixRate,
    Roofline,
    Transfer,
    Utilisation,
    VariantResult,
)
from tests.records import collective_run, record
from transformer_core.machine.vendor_peaks import vendor_peak
from transformer_core.measure.collectives import write_table

COMMAND = "snakemake --cores all results/machine/roofline.json"
TERA = 1e12


def write_limits(folder: Path, results: dict[str, VariantResult]) -> None:
    """Limits of a GPU that lacks a format, and utilisation of the variants: those that are ok reach a
    third of the ceiling."""
    machine = folder / "machine"
    rates = {"fp32": 50 * TERA, "tf32": 390 * TERA, "bf16": 780 * TERA, "fp16": None}
    limits = record(
        Roofline,
        status="ok",
        device="NVIDIA H200",
        kind="cuda",
        threads=16,
        matrix=[
            record(MatrixRate, format=number_format, flops_per_second=rate, shape=[4096] * 3)
            if rate
            else record(MatrixRate, format=number_format, reason=EVIL)
            for number_format, rate in rates.items()
        ],
        memory=[
            Bandwidth(operation=operation, threads=None, bytes_per_second=4.2e12)
            for operation in ("copy", "triad")
        ],
        launch_overhead_seconds=4.2e-6,
        transfers=[
            Transfer(direction="host_to_device", memory="pinned", bytes_per_second=55e9),
            Transfer(direction="device_to_host", memory="pageable", bytes_per_second=11e9),
        ],
        vendor=vendor_peak("NVIDIA H200"),
        torch="2.13.0",
        command=COMMAND,
    )
    write(machine / "roofline.json", limits)
    used = [utilisation_of(result) for result in results.values()]
    write(folder / "utilisation.json", json.dumps([u.model_dump(mode="json") for u in used]))
    measured = any(result.status == "ok" for result in results.values())
    write_collectives(machine / "collectives.parquet", measured)


def utilisation_of(result: VariantResult) -> Utilisation:
    """A third of the measured ceiling, for a variant that is ok."""
    ended = {"variant": result.variant, "status": result.status, "reason": result.reason}
    if result.status != "ok":
        return record(Utilisation, ceiling_reason=EVIL, **ended)
    shares = {
        name: Interval(median=of, low=0.9 * of, high=1.1 * of, samples=20)
        for name, of in {
            "flops_per_second": 16 * TERA,
            "of_ceiling": 0.32,
            "padded_of_ceiling": 0.36,
            "of_vendor_peak": 0.24,
        }.items()
    }
    limits = {"format": "fp32", "ceiling": 50 * TERA}
    return record(Utilisation, **ended, **limits, **shares)


def write_collectives(path: Path, measured: bool) -> None:
    """Curves of two operations, or the reason for their absence."""
    rows = [
        (name, size, 10, 1e-5 + size / 2e11, size / (1e-5 + size / 2e11), size / 1e-5 / 3, 0.0)
        for name in ("all_reduce", "broadcast")
        for size in (4096, 2**16, 2**20, 2**24)
    ]
    ended = {"backend": "nccl", "device": "NVIDIA H200"}
    if not measured:
        rows, ended = [], {"status": "unsupported", "reason": EVIL, "backend": None, "device": None}
    write_table(path, rows, collective_run(COMMAND).model_copy(update=ended))
