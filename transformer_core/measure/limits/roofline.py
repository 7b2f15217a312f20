"""What the devices of this machine reach: ``python -m transformer_core.measure.limits.roofline``.

Matrix products of random numbers by format, copies in memory, the overhead of an operation, copies
between host and device. Each is repeated for a short while and the best repetition counts, as in
STREAM: what disturbs a measurement only makes it slower. Random numbers, because a GPU that
multiplies zeros draws less power and keeps a higher clock.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from schemas.config.profiling import Limits
from schemas.results import Bandwidth, MatrixRate, Roofline
from transformer_core.common.endings import program, reproducing_command
from transformer_core.common.seals import write_sealed
from transformer_core.machine import hardware
from transformer_core.measure.limits.copy_rates import array_size, bandwidths, transfers
from transformer_core.measure.limits.matrix_rates import FORMATS, matrix_rate
from transformer_core.measure.limits.stopwatch import Stopwatch
from transformer_core.measure.limits.vendor_peaks import vendor_peak

TRANSFER_BYTES = 64 * 2**20


def measure(asked: Literal["auto", "cpu", "cuda"], limits: Limits, command: str) -> Roofline:
    """The roofline of the device that runs take if they ask for a device like this."""
    found = torch.cuda.is_available()
    if asked == "cuda" and not found:
        return _without_device(command)
    cuda = found and asked != "cpu"
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    watch = Stopwatch(device, limits.seconds)
    name = torch.cuda.get_device_name(device) if cuda else hardware.cpu_name()
    cores = hardware.usable_cores()
    # On a CPU for one thread too, since ranks that share the cores have a part of them each.
    matrix, memory = _rates(watch, limits, [None] if cuda else [*sorted({1, cores})])
    return Roofline(
        status="ok",
        reason=None,
        device=name,
        kind="cuda" if cuda else "cpu",
        threads=cores,
        matrix=matrix,
        memory=memory,
        launch_overhead_seconds=launch_overhead(watch),
        transfers=transfers(watch, TRANSFER_BYTES) if cuda else [],
        transfer_reason=None if cuda else "The host is the device.",
        vendor=vendor_peak(name),
        torch=torch.__version__,
        command=command,
    )


def _without_device(command: str) -> Roofline:
    """The record of a host without the device that is asked for."""
    return Roofline(
        status="unsupported",
        reason="The study asks for CUDA devices, and this host has none.",
        device=None,
        kind=None,
        threads=hardware.usable_cores(),
        matrix=[],
        memory=[],
        launch_overhead_seconds=None,
        transfers=[],
        transfer_reason=None,
        vendor=None,
        torch=torch.__version__,
        command=command,
    )


def _rates(
    watch: Stopwatch, limits: Limits, counts: Sequence[int | None]
) -> tuple[list[MatrixRate], list[Bandwidth]]:
    """Matrix products of every format, and the memory, with each of these numbers of threads."""
    matrix: list[MatrixRate] = []
    memory: list[Bandwidth] = []
    for threads in counts:
        if threads is not None:
            torch.set_num_threads(threads)
        for number_format in FORMATS:
            rate = matrix_rate(watch, number_format, limits.largest_matrix, threads)
            matrix.append(rate)
            print(_told(rate), flush=True)
        memory += bandwidths(watch, array_size(watch.device), threads)
        print(f"memory, {_threads(threads)}: {memory[-2].bytes_per_second / 1e9:,.1f} GB/s copy")
    return matrix, memory


def launch_overhead(watch: Stopwatch) -> float:
    """Host seconds per operation on a single number, when many are issued in a row."""
    number = torch.zeros(1, device=watch.device)

    def many() -> None:
        for _ in range(100):
            number.add_(1)

    return watch.best(many) / 100


def _told(rate: MatrixRate) -> str:
    what = f"{rate.format} matrix products, {_threads(rate.threads)}"
    if rate.flops_per_second is None:
        return f"{what}: {rate.reason}"
    return f"{what}: {rate.flops_per_second / 1e9:,.0f} GFLOP/s"


def _threads(threads: int | None) -> str:
    if threads is None:
        return "on the GPU"
    return f"{threads} thread{'s' if threads > 1 else ''}"


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the roofline; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.measure.limits.roofline",
        description="Measure what the device of this machine reaches: matrix products by format, "
        "memory bandwidth, overhead of an operation, copies between host and device.",
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="kind of device"
    )
    parser.add_argument(
        "--limits",
        default=Limits().canonical_json(),
        help="how thoroughly, as JSON (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="for example results/machine/roofline.json"
    )
    options = parser.parse_args(arguments)
    limits = Limits.model_validate_json(options.limits)
    roofline = measure(options.device, limits, reproducing_command(options.output))
    write_sealed(options.output, roofline.model_dump_json(indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
