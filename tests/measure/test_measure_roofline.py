"""The limits of a device: the best of repeated measurements, or a reason if there is none."""

import pytest
import torch

from schemas.config.measurement import Limits
from schemas.errors import Unsupported
from schemas.results import Roofline
from schemas.results.machine import Gpu
from tests.orders import run_job
from transformer_core.machine import hardware
from transformer_core.machine import vendor_peaks as vendor_peaks_module
from transformer_core.machine.vendor_peaks import vendor_peak, vendor_peaks
from transformer_core.measure import roofline
from transformer_core.measure.roofline import (
    Stopwatch,
    array_size,
    bandwidths,
    launch_overhead,
    matrix_rate,
    measure,
    shapes,
    transfers,
)

CPU = torch.device("cpu")
QUICK = Limits(seconds=0.001, largest_matrix=512, largest_array=2**20)


class FakeClock:
    """A clock on which every call takes the next of these times, in seconds."""

    def __init__(self, durations: list[float]) -> None:
        self.durations = durations
        self.now = 0.0
        self.calls = 0

    def __call__(self) -> None:
        self.now += self.durations[min(self.calls, len(self.durations) - 1)]
        self.calls += 1

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("durations", "best"),
    [([9.0, 3.0, 2.0, 4.0], 2.0), ([9.0, 1.0, 3.0], 1.0), ([9.0, 50.0, 50.0], 50.0)],
    ids=["slower first", "faster first", "longer than allowed"],
)
def test_the_best_reading_counts_and_the_first_call_does_not(durations, best, monkeypatch):
    clock = FakeClock(durations)
    monkeypatch.setattr(roofline, "time", clock)
    assert Stopwatch(CPU, 5.0).best(clock) == best


def test_short_calls_are_read_together(monkeypatch):
    clock = FakeClock([1e-6])
    monkeypatch.setattr(roofline, "time", clock)
    assert Stopwatch(CPU, 0.01).best(clock) == pytest.approx(1e-6)
    assert clock.calls > 5_000, "a reading must last much longer than the clock's resolution"


def test_products_are_counted_as_multiplications_and_additions(monkeypatch):
    monkeypatch.setattr(Stopwatch, "best", lambda self, call: call() is not None and 1.0)
    rate = matrix_rate(Stopwatch(CPU, 1e9), "fp32", 512, 1)
    m, k, n = max(shapes(512), key=lambda shape: shape[0] * shape[1] * shape[2])
    assert rate.flops_per_second == 2 * m * k * n
    assert rate.shape == [m, k, n]


def test_a_slow_format_is_not_tried_on_large_matrices(monkeypatch):
    tried = []

    def product(m: int, k: int, n: int, *_: object) -> object:
        tried.append(m * k * n)
        return lambda: None

    monkeypatch.setattr(roofline, "_product", product)
    monkeypatch.setattr(Stopwatch, "best", lambda self, call: tried[-1] / 1e6)
    matrix_rate(Stopwatch(CPU, 0.001), "fp16", 4096, 1)
    assert set(tried) == {512**3}


def test_copy_and_triad_count_reads_and_writes(monkeypatch):
    monkeypatch.setattr(Stopwatch, "best", lambda self, call: call() or 1.0)
    found = {b.operation: b for b in bandwidths(Stopwatch(CPU, 0.001), 4000, 1)}
    assert found["copy"].bytes_per_second == 8000
    assert found["triad"].bytes_per_second == 12000


def test_the_last_caches_are_the_largest_of_all_cores(tmp_path):
    """Of four cores, two and two share one; as on chiplets, and on several sockets."""
    for cpu in range(4):
        for index, size in enumerate(["32K", "1M", "16M", "odd"]):
            folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            folder.mkdir(parents=True)
            (folder / "size").write_text(f"{size}\n")
            shared = cpu if index < 2 else "0-1" if cpu < 2 else "2-3"
            (folder / "shared_cpu_list").write_text(f"{shared}\n")
    for cpus, count in (({0}, 1), ({0, 1}, 1), ({1, 2}, 2), (range(4), 2)):
        assert hardware.last_level_cache_bytes(tmp_path, cpus) == count * 16 * 2**20
    assert hardware.last_level_cache_bytes(tmp_path / "none") == 0
    assert array_size(CPU) >= min(
        hardware.last_level_cache_bytes(), hardware.usable_memory_bytes() // 32
    )


@pytest.mark.slow
def test_a_cpu_is_measured_with_one_and_all_threads(tmp_path, monkeypatch):
    sizes = []

    def sized(watch, size, threads):
        sizes.append(size)
        return bandwidths(watch, size, threads)

    monkeypatch.setattr(roofline, "bandwidths", sized)
    before, file = torch.get_num_threads(), tmp_path / "roofline.json"
    try:
        assert run_job("roofline", device="cpu", limits=QUICK, output=file) == 0
    finally:
        torch.set_num_threads(before)
    found = Roofline.model_validate_json(file.read_text())
    assert (found.status, found.kind, found.vendor) == ("ok", "cpu", None)
    counts = sorted({1, hardware.usable_cores()})
    assert sorted({rate.threads for rate in found.matrix}) == counts
    for rate in found.matrix:
        assert (rate.flops_per_second is None) == (rate.reason is not None)
        if rate.format == "tf32":
            assert (rate.flops_per_second, rate.shape) == (None, None)
            assert "CUDA devices" in rate.reason
    assert all(memory.bytes_per_second > 0 for memory in found.memory)
    assert set(sizes) == {QUICK.largest_array}
    assert found.launch_overhead_seconds > 0
    assert found.transfers == []
    assert found.transfer_reason


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unsupported("torch has no kernels for it"), "unsupported"),
        (
            RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
            "unsupported",
        ),
        (torch.OutOfMemoryError("CUDA out of memory."), "oom"),
    ],
)
def test_a_device_that_cannot_be_measured_has_a_status(monkeypatch, error, status):
    """As its runs have. Without this file there would be no report."""

    def refuse(machine: object) -> None:
        raise error

    monkeypatch.setattr(roofline, "require_usable_gpus", refuse)
    assert measure("auto", QUICK, "again").status == status


def test_a_missing_device_is_unsupported(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = measure("cuda", QUICK, "again")
    assert (found.status, found.kind, found.matrix) == ("unsupported", None, [])
    assert "none" in str(found.reason)


def test_vendors_peaks_are_found_by_the_exact_name():
    peak = vendor_peak("NVIDIA H200")
    assert peak.flops_per_second["bf16"] == 989.5e12
    for slower in ("NVIDIA H100 NVL", "NVIDIA H200 NVL"):
        assert vendor_peak(slower).flops_per_second["bf16"] == 835.5e12
    for stranger in ("NVIDIA GeForce RTX 3090 Ti", "NVIDIA H200 PCIe", "h200", "AMD EPYC", ""):
        assert vendor_peak(stranger) is None


def test_the_table_of_vendors_is_sound():
    names = [peak.device for peak in vendor_peaks()]
    assert len(names) == len(set(names))
    for peak in vendor_peaks():
        rates = peak.flops_per_second
        assert 1e12 < rates["fp32"] < rates["fp16"] < 5e15
        assert rates.get("bf16", rates["fp16"]) == rates["fp16"]
        assert 1e11 < peak.bytes_per_second < 1e13
        assert peak.source


@pytest.mark.gpu
def test_a_gpu_has_all_limits():
    found = measure("auto", Limits(seconds=0.02, largest_matrix=4096), "again")
    assert (found.status, found.kind) == ("ok", "cuda")
    rates = {rate.format: rate.flops_per_second for rate in found.matrix}
    if torch.cuda.get_device_capability() >= (8, 0):
        assert rates["tf32"] is not None
        assert rates["bf16"] is not None
        assert rates["fp32"] < rates["bf16"]
    if found.vendor is not None:
        for number_format, rate in rates.items():
            assert rate is None or rate < 1.05 * found.vendor.flops_per_second[number_format]
        assert all(m.bytes_per_second < 1.1 * found.vendor.bytes_per_second for m in found.memory)
    device = torch.device("cuda", 0)
    watch = Stopwatch(device, 0.02)
    assert 1e-7 < launch_overhead(watch) < 1e-3
    speeds = {(t.direction, t.memory): t.bytes_per_second for t in transfers(watch, 2**26)}
    assert len(speeds) == 4
    assert speeds["host_to_device", "pinned"] > speeds["host_to_device", "pageable"]


@pytest.mark.parametrize(
    ("name", "rate"), [("NVIDIA H100 80GB HBM3", 50.175e12), ("new", 11.25e12)]
)
def test_a_plan_expects_three_quarters_of_the_vendors_rate(monkeypatch, name, rate):
    gpu = Gpu.model_construct(name=name)
    monkeypatch.setattr(vendor_peaks_module.nvml, "gpus", lambda: ([gpu], None))
    monkeypatch.setattr(vendor_peaks_module.nvml, "uuids", lambda: ["GPU-a1"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert vendor_peaks_module.expected_rate_of_gpu() == pytest.approx(rate)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert vendor_peaks_module.expected_rate_of_gpu() is None, "jobs will use the CPU"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(vendor_peaks_module.nvml, "gpus", lambda: ([], "no driver"))
    assert vendor_peaks_module.expected_rate_of_gpu() is None
