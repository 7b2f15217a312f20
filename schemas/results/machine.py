"""The machine: results/machine/."""

from typing import Literal

from schemas.base import Schema
from schemas.config.facts import NumberFormat as NumberFormat
from schemas.results.common import Bytes, Elapsed, Few, Interval, Many, PerSecond, Status, Watts


class Gpu(Schema):
    """One GPU as NVML describes it."""

    index: Few
    """NVML index."""
    name: str
    """Product name."""
    memory_bytes: Bytes
    """Memory of the device."""
    compute_capability: str | None
    """For example 9.0."""
    driver: str
    """Driver version."""
    power_limit_watts: Watts | None
    """Enforced power limit."""


class Hardware(Schema):
    """results/machine/hardware.json: the machine, read inside a job."""

    platform: str
    """Operating system and architecture."""
    cpu: str
    """Product name of the CPU."""
    cores: Few
    """Cores this job may use."""
    logical_cpus: Few
    """Logical CPUs of the host."""
    memory_bytes: Bytes
    """Main memory of the host, or of its control group if smaller."""
    cpu_features: list[str]
    """Instruction sets relevant to training (avx512f, avx512_bf16, amx_bf16, ...)."""
    gpus: list[Gpu]
    """The GPUs; empty if there are none."""
    gpu_note: str | None
    """Why no GPU is listed, if none is."""
    allocator: str
    """C memory allocator of the process."""
    cuda_allocator: str | None = None
    """torch's CUDA memory allocator: its kind, its segment type and its settings; null if the
    process used no CUDA device."""
    affinity: str | None = None
    """Cores available to the process, and how many of its threads are pinned to one; null in
    older records."""


class MatrixRate(Schema):
    """Best rate of matrix products of random numbers in one format."""

    format: NumberFormat
    """Format of the operands."""
    threads: Few | None
    """CPU threads; null on a GPU."""
    flops_per_second: PerSecond | None
    """Multiplications and additions per second for the best shape; null if not measured."""
    shape: list[Many] | None
    """The best shape, as [m, k, n] of an [m, k] by [k, n] product."""
    reason: str | None
    """Why it was not measured, if it was not."""


class Bandwidth(Schema):
    """Best rate at which device memory is read and written."""

    operation: Literal["copy", "triad"]
    """copy: a = b; triad: a = b + s c (STREAM)."""
    threads: Few | None
    """CPU threads; null on a GPU."""
    bytes_per_second: PerSecond
    """Bytes read and written per second, excluding cache reads before writes."""
    array_bytes: Bytes
    """Size of each array, larger than the last-level cache."""


class Transfer(Schema):
    """Copies between host and device."""

    direction: Literal["host_to_device", "device_to_host"]
    """Direction of the copy."""
    memory: Literal["pinned", "pageable"]
    """Kind of host memory."""
    bytes_per_second: PerSecond | None
    """Bytes per second of the best copy; null if there is no device other than the host."""


class VendorPeak(Schema):
    """Peak rates from a device's data sheet, dense (without structured sparsity)."""

    device: str
    """Product name as the driver gives it."""
    flops_per_second: dict[NumberFormat, PerSecond]
    """Peak by operand format; formats that the device lacks are absent."""
    bytes_per_second: PerSecond
    """Peak memory bandwidth."""
    source: str
    """The source document."""


class Roofline(Schema):
    """results/machine/roofline.json: measured limits of this machine's devices."""

    status: Status
    """How the measurement ended."""
    reason: str | None
    """Why it is not ok."""
    device: str | None
    """Product name of the device; the first one if there are several."""
    kind: Literal["cpu", "cuda"] | None
    """Kind of device; null if there is none of the kind that the study asks for."""
    threads: Few
    """CPU threads used by a single process."""
    matrix: list[MatrixRate]
    """Matrix products by format and threads."""
    memory: list[Bandwidth]
    """Memory by operation and threads."""
    launch_overhead_seconds: Elapsed | None
    """Host time per trivial operation: launching a kernel on a GPU, dispatching an operator on a
    CPU."""
    transfers: list[Transfer]
    """Copies between host and device."""
    transfer_reason: str | None
    """Why no copies were measured, if none were."""
    vendor: VendorPeak | None
    """The vendor's numbers; null for a device missing from the table, never another device's."""
    torch: str
    """Version of torch."""
    command: str
    """The single command that reproduces this file."""


COLLECTIVE_COLUMNS: dict[str, str] = {
    "collective": "string: broadcast, scatter, gather, reduce, all_gather, reduce_scatter, "
    "all_reduce, or ring_all_reduce (this project's own)",
    "bytes": "int64: size S as nccl-tests defines it: the largest buffer of a rank",
    "repetitions": "int64: calls between two synchronised clock readings, best of a few readings",
    "seconds": "float64: time of a call, of the slowest rank",
    "algorithm_bandwidth": "float64: S / seconds, in bytes per second",
    "bus_bandwidth": "float64: algorithm bandwidth times the factor of the collective",
    "error": "float64: largest absolute difference to the right result, on any rank",
}
"""Columns of results/machine/collectives.parquet. Its metadata (key ``study``) is a
:class:`CollectiveRun` as JSON."""


class CollectiveRun(Schema):
    """How results/machine/collectives.parquet was produced."""

    status: Status
    """How the measurement ended; the table is empty if it is not ok."""
    reason: str | None
    """Why it is not ok."""
    backend: str | None
    """gloo or nccl."""
    world_size: Few
    """Processes that communicate."""
    nodes: Few
    """Hosts."""
    device: str | None
    """cpu, or the product name of the GPU."""
    command: str
    """The single command that reproduces the file."""


class Utilisation(Schema):
    """One variant in results/utilisation.json: its arithmetic relative to what the devices can
    reach.

    Model FLOPs are the forward and backward matrix products of an encoder-decoder, counted from the
    lengths in the actual batches; recomputation, element-wise work and the optimizer are excluded.
    """

    variant: str
    """Name of the variant."""
    status: Status
    """Final status of the variant's runs."""
    reason: str | None
    """Why there is no number, if there is none."""
    format: NumberFormat | None
    """Format of its matrix products, which selects the ceiling."""
    flops_per_second: Interval | None
    """Model FLOPs per second of all ranks, non-padding tokens only."""
    padded_flops_per_second: Interval | None
    """The same, including the work on padding."""
    ceiling: PerSecond | None
    """Measured FLOPs per second of all its devices combined."""
    ceiling_reason: str | None
    """Why there is no measured ceiling, if there is none."""
    vendor_peak: PerSecond | None
    """The vendor's FLOPs per second for all its devices combined; null for unknown devices."""
    of_ceiling: Interval | None
    """Non-padding FLOPs per second over the measured ceiling."""
    padded_of_ceiling: Interval | None
    """FLOPs per second with padding over the measured ceiling."""
    of_vendor_peak: Interval | None
    """Non-padding FLOPs per second over the vendor's peak."""
