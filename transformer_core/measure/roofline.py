"""Measures the ceilings of this machine's devices.

It times matrix products by number format, copies in memory, the overhead of an operation, and copies
between host and device. Each is repeated for a short while, and the best repetition counts, as in
STREAM: disturbances only make a measurement slower. Matrices are random, because a GPU that
multiplies zeros draws less power and keeps a higher clock.

Vendors' peaks are looked up by the full product name: a device that is not in the table has none,
never that of a similar one. Rates of matrix units are dense (half of those printed "with sparsity"
in data sheets), with 32-bit accumulation.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Literal, get_args

import torch
import torch.nn.functional as F

from schemas.config.measurement import Limits
from schemas.config.parallel import Machine
from schemas.config.training import Fp32, Fp32Onednn, Tf32
from schemas.errors import Unsupported
from schemas.results import Bandwidth, MatrixRate, NumberFormat, Roofline, Transfer
from transformer_core.common.digests import write_result
from transformer_core.common.endings import reproducing_command
from transformer_core.common.job import Job
from transformer_core.common.progress import log
from transformer_core.machine import hardware
from transformer_core.machine.vendor_peaks import FORMATS, vendor_peak
from transformer_core.parallel.topology import require_usable_gpus
from transformer_core.run.statuses import Outcome
from transformer_core.training.precision import set_matmul

TRANSFER_BYTES = 64 * 2**20


def measure(asked: Literal["auto", "cpu", "cuda"], limits: Limits, command: str) -> Roofline:
    """Measures the ceilings of the device that runs use with this setting."""
    try:
        require_usable_gpus(Machine(device=asked, devices_per_node=1))
        if asked == "cuda" and not torch.cuda.is_available():
            raise Unsupported("The study asks for CUDA devices, and this host has none.")
        return _measured(asked, limits, command)
    except RuntimeError as error:
        outcome = Outcome.of(error)
        if outcome.status == "failed":
            raise
        known = {"threads": hardware.usable_cores(), "torch": torch.__version__}
        return outcome.result(Roofline, command=command, **known)


def _measured(asked: Literal["auto", "cpu", "cuda"], limits: Limits, command: str) -> Roofline:
    cuda = torch.cuda.is_available() and asked != "cpu"
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    watch = Stopwatch(device, limits.seconds)
    name = torch.cuda.get_device_name(device) if cuda else hardware.cpu_name()
    cores = hardware.usable_cores()
    # On a CPU also with one thread, since ranks divide the cores among themselves.
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


@dataclass(frozen=True)
class Stopwatch:
    """Times calls between synchronised points of a device."""

    device: torch.device
    seconds: float  # for all readings of one call

    def best(self, call: Callable[[], object]) -> float:
        """Seconds of one call: the best of as many readings as ``seconds`` allow, at least two, or
        one if a call takes longer.

        The first call is a warm-up and does not count.
        """
        calls, best, left = 1, math.inf, self.seconds
        if self._reading(call, 1) < self.seconds:
            best = self._reading(call, 1)
            calls = max(1, round(_READING_SECONDS / best))
        while True:
            reading = self._reading(call, calls)
            best = min(best, reading)
            left -= reading * calls
            if left <= 0:
                return best

    def _reading(self, call: Callable[[], object], calls: int) -> float:
        self._synchronise()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        self._synchronise()
        return max(time.perf_counter() - began, 1e-9) / calls

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _rates(
    watch: Stopwatch, limits: Limits, counts: Sequence[int | None]
) -> tuple[list[MatrixRate], list[Bandwidth]]:
    """Rates of matrix products in every format, and of memory, for each number of threads."""
    matrix: list[MatrixRate] = []
    memory: list[Bandwidth] = []
    for threads in counts:
        if threads is not None:
            torch.set_num_threads(threads)
        for number_format in FORMATS:
            rate = matrix_rate(watch, number_format, limits.largest_matrix, threads)
            matrix.append(rate)
            log.info("%s", _told(rate))
        size = min(array_size(watch.device), limits.largest_array)
        memory += bandwidths(watch, size, threads)
        copied = memory[-2].bytes_per_second / 1e9
        log.info("memory, %s: %s GB/s copy", _threads(threads), f"{copied:,.1f}")
    return matrix, memory


def launch_overhead(watch: Stopwatch) -> float:
    """Host seconds per operation on a single number, when issuing many in a row."""
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
    return "on the GPU" if threads is None else f"{threads} thread{'s' if threads > 1 else ''}"


class RooflineJob(Job):
    """Measures the limits of this machine's device: matrix products by format, memory bandwidth,
    overhead of an operation, copies between host and device."""

    kind = "roofline"

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of device."""
    limits: Limits = Limits()
    """limits of the study: how thoroughly to measure."""
    output: Path
    """JSON file to write."""

    def run(self, log_file: Path | None) -> None:
        roofline = measure(self.device, self.limits, reproducing_command(self.output))
        write_result(self.output, roofline.model_dump_json(indent=1) + "\n")


_READING_SECONDS = 0.005  # minimum time between two readings of the clock


_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Tensors of the other formats have 32 bits."""

_PATIENCE = 2.0
"""A call is skipped if it would take longer than this multiple of the time for all repetitions."""


def matrix_rate(
    watch: Stopwatch, number_format: NumberFormat, largest: int, threads: int | None
) -> MatrixRate:
    """The best rate among square matrices up to ``largest`` and the flat ones of a Transformer."""
    best: tuple[float, list[int]] | None = None
    reason = None
    dtype = _DTYPES.get(number_format, torch.float32)
    try:
        # Libraries may have a fast kernel for only one layout of the second factor: plain, or
        # transposed as in linear layers.
        for onednn, transposed in product(_libraries(number_format, watch.device), (False, True)):
            reached = 0.0
            with _products_in(number_format, watch.device, onednn):
                for m, k, n in shapes(largest):
                    flops = 2 * m * k * n
                    if reached and flops / reached > _PATIENCE * watch.seconds:
                        continue  # for example, a format without hardware support
                    rate = flops / watch.best(_product(m, k, n, dtype, watch.device, transposed))
                    reached = max(reached, rate)
                    if best is None or rate > best[0]:
                        best = rate, [m, k, n]
    except (Unsupported, RuntimeError) as error:
        # RuntimeError: this build cannot multiply the format, or the size does not fit in memory.
        reason = None if best else str(error).split("\n")[0]
    return MatrixRate(
        format=number_format,
        threads=threads,
        flops_per_second=best[0] if best else None,
        shape=best[1] if best else None,
        reason=reason,
    )


def shapes(largest: int) -> Iterator[tuple[int, int, int]]:
    """[m, k] by [k, n] products to try, small ones first: square ones, and the two of a feed-forward
    layer, between width and inner width."""
    sides, side = [largest], 512
    while side < largest:
        sides.append(side)
        side *= 2
    flat = [(largest, 512, 2048), (largest, 2048, 512)]
    yield from sorted([*((side,) * 3 for side in sides), *flat], key=prod)


def _libraries(number_format: NumberFormat, device: torch.device) -> tuple[bool, ...]:
    """Whether to request oneDNN instead of torch's choice: tries both if that may be slower."""
    asked = (
        number_format == "fp32" and device.type == "cpu" and torch.backends.mkldnn.is_available()
    )
    return (False, True) if asked else (False,)


@contextmanager
def _products_in(
    number_format: NumberFormat, device: torch.device, onednn: bool = False
) -> Iterator[None]:
    """A context in which products use this format; Unsupported if the device lacks it."""
    old = device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)
    if number_format == "bf16" and old:
        raise Unsupported("no bfloat16 units, which come with compute capability 8.0")
    in_32_bits = Fp32Onednn(kind="fp32_onednn") if onednn else Fp32()
    set_matmul(Tf32(kind="tf32") if number_format == "tf32" else in_32_bits, device)
    try:
        yield
    finally:
        set_matmul(Fp32(), device)


def _product(
    m: int, k: int, n: int, dtype: torch.dtype, device: torch.device, transposed: bool
) -> Callable[[], object]:
    left = torch.randn(m, k, device=device).to(dtype)
    if transposed:
        weight = torch.randn(n, k, device=device).to(dtype)
        return lambda: F.linear(left, weight)
    right = torch.randn(k, n, device=device).to(dtype)
    return lambda: torch.mm(left, right)


def bandwidths(watch: Stopwatch, array_bytes: int, threads: int | None) -> list[Bandwidth]:
    """Copy and triad (McCalpin's STREAM) over arrays of 32-bit numbers."""
    count = array_bytes // 4
    # Drawing so many random numbers would take longer than all copies.
    some = torch.rand(2**20, device=watch.device)
    b = some.repeat(-(-count // len(some)))[:count]
    a, c = torch.empty_like(b), b.clone()

    def copy() -> None:
        a.copy_(b)

    def triad() -> None:
        torch.add(b, c, alpha=3.0, out=a)

    def found(
        operation: Literal["copy", "triad"], call: Callable[[], None], arrays: int
    ) -> Bandwidth:
        rate = arrays * 4 * count / watch.best(call)
        return Bandwidth(operation=operation, threads=threads, bytes_per_second=rate)

    return [found("copy", copy, 2), found("triad", triad, 3)]


def array_size(device: torch.device) -> int:
    """Bytes of an array that exceeds all caches, and takes a small part of the memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return min(2**30, free // 8)
    largest = max(4 * hardware.last_level_cache_bytes(), 64 * 2**20)
    return min(largest, hardware.usable_memory_bytes() // 32)


def transfers(watch: Stopwatch, size: int) -> list[Transfer]:
    """Copies of ``size`` bytes between a GPU and pinned and pageable memory of the host."""
    on_device = torch.rand(size // 4, device=watch.device)
    found = []
    for memory in get_args(Transfer.model_fields["memory"].annotation):
        on_host = torch.rand(size // 4)
        on_host = on_host.pin_memory() if memory == "pinned" else on_host
        ends = {"host_to_device": (on_device, on_host), "device_to_host": (on_host, on_device)}
        for direction, (to, source) in ends.items():
            seconds = watch.best(partial(to.copy_, source, non_blocking=True))
            values = {"direction": direction, "memory": memory, "bytes_per_second": size / seconds}
            found.append(Transfer.model_validate(values))
    return found
