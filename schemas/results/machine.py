"""The machine: results/machine/."""

from collections import Counter
from typing import Literal

from schemas.base import Schema
from schemas.config.facts import NumberFormat as NumberFormat
from schemas.results.common import Bytes, Elapsed, Ending, Few, Interval, Many, PerSecond, Watts


class Gpu(Schema):
    """One GPU as NVML describes it, or its first slice if MIG divides it."""

    index: Few  # NVML index
    name: str  # product name
    memory_bytes: Bytes  # memory of the device
    compute_capability: str | None  # for example 9.0
    driver: str  # driver version
    power_limit_watts: Watts | None  # enforced power limit


class Hardware(Schema):
    """results/machine/hardware.json: the machine, read inside a job."""

    platform: str  # operating system and architecture
    cpu: str  # product name of the CPU
    cores: Few  # cores this job may use
    logical_cpus: Few  # logical CPUs of the host
    memory_bytes: Bytes  # main memory of the host, or of its control group if smaller
    cpu_features: list[str]  # instruction sets that matter (avx512f, amx_bf16, ...)
    gpus: list[Gpu]  # the GPUs; empty if there are none
    gpu_note: str | None  # why GPUs or their details are missing, if they are
    allocator: str  # C memory allocator of the process
    cuda_allocator: str | None = None  # kind and settings; null if no CUDA device was used
    affinity: str | None = None  # cores of the process, and how many threads are pinned

    @property
    def devices(self) -> str:
        """The GPUs by name, or the CPU if there are none."""
        names = Counter(gpu.name for gpu in self.gpus)
        shown = (f"{count} × {name}" if count > 1 else name for name, count in names.items())
        return ", ".join(shown) or self.cpu


class MatrixRate(Schema):
    """Best rate of matrix products of random numbers in one format."""

    format: NumberFormat  # format of the operands
    threads: Few | None  # CPU threads; null on a GPU
    flops_per_second: PerSecond | None  # of the best shape; null if not measured
    shape: list[Many] | None  # the best shape, as [m, k, n] of an [m, k] by [k, n] product
    reason: str | None  # why it was not measured, if it was not


class Bandwidth(Schema):
    """Best rate at which device memory is read and written."""

    operation: Literal["copy", "triad"]  # copy: a = b; triad: a = b + s c (STREAM)
    threads: Few | None  # CPU threads; null on a GPU
    bytes_per_second: PerSecond  # read and written, excluding reads before writes


class Transfer(Schema):
    """Copies between host and device."""

    direction: Literal["host_to_device", "device_to_host"]  # direction of the copy
    memory: Literal["pinned", "pageable"]  # kind of host memory
    bytes_per_second: PerSecond | None  # of the best copy; null without such a device


class VendorPeak(Schema):
    """Peak rates from a device's data sheet, dense (without structured sparsity)."""

    device: str  # product name as the driver gives it
    flops_per_second: dict[NumberFormat, PerSecond]  # by operand format, if it has it
    bytes_per_second: PerSecond  # peak memory bandwidth
    source: str


class Roofline(Ending):
    """results/machine/roofline.json: measured limits of this machine's devices."""

    device: str | None  # product name of the device; the first one if there are several
    kind: Literal["cpu", "cuda"] | None  # null without the device that the study asks for
    threads: Few  # CPU threads used by a single process
    matrix: list[MatrixRate]  # matrix products by format and threads
    memory: list[Bandwidth]  # memory by operation and threads
    launch_overhead_seconds: Elapsed | None  # host time of a trivial operation
    transfers: list[Transfer]  # copies between host and device
    transfer_reason: str | None  # why no copies were measured, if none were
    vendor: VendorPeak | None  # the vendor's numbers; null if unknown
    torch: str  # version of torch
    command: str  # the single command that reproduces this file


COLLECTIVE_COLUMNS: dict[str, str] = {
    "collective": "string: broadcast, scatter, gather, reduce, all_gather, reduce_scatter, "
    "all_reduce, or ring_all_reduce (this project's own)",
    "bytes": "int64: size S as nccl-tests defines it: the largest buffer of a rank",
    "repetitions": "int64: calls between two synchronized clock readings, best of a few readings",
    "seconds": "float64: time of a call, of the slowest rank",
    "algorithm_bandwidth": "float64: S / seconds, in bytes per second",
    "bus_bandwidth": "float64: algorithm bandwidth times the factor of the collective",
    "error": "float64: largest absolute difference to the right result, on any rank",
}
"""Columns of results/machine/collectives.parquet. Its metadata (key ``study``) is a
:class:`CollectiveRun` as JSON."""


class CollectiveRun(Ending):
    """How results/machine/collectives.parquet was produced."""

    backend: str | None  # gloo or nccl
    world_size: Few  # processes that communicate
    nodes: Few  # hosts
    device: str | None  # cpu, or the product name of the GPU
    command: str  # the single command that reproduces the file


class Utilisation(Ending):
    """One variant in results/utilisation.json: its arithmetic relative to what the devices can
    reach.

    Model FLOPs are the forward and backward matrix products of an encoder-decoder, counted from the
    lengths in the actual batches; recomputation, element-wise work and the optimizer are excluded.
    """

    variant: str
    format: NumberFormat | None  # format of its matrix products, which selects the ceiling
    flops_per_second: Interval | None
    """Model FLOPs per second of all ranks, non-padding tokens only."""
    ceiling: PerSecond | None  # measured FLOPs per second of all its devices combined
    ceiling_reason: str | None  # why there is no measured ceiling, if there is none
    of_ceiling: Interval | None  # non-padding FLOPs per second over the measured ceiling
    padded_of_ceiling: Interval | None  # FLOPs per second with padding over the measured ceiling
    of_vendor_peak: Interval | None  # non-padding FLOPs per second over the vendor's peak
