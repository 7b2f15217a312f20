"""Reports of Nsight Systems: generations of the format, several processes, missing parts."""

import pytest
from traces import (
    GENERATIONS,
    Report,
    break_down,
    device_in,
    global_id,
    one_kernel,
    rows_in,
    training_report,
)

from transformer_core.observe.nsys import CAPTURE_RANGE
from transformer_core.trace.breakdown.summary import NO_EVENTS, breakdown_of_files
from transformer_core.trace.events.event_table import rows_of
from transformer_core.trace.readers.files import read_files


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_reads_the_same(tmp_path, generation):
    reading = read_files([training_report(tmp_path / "report.sqlite", generation)])
    assert reading.version == GENERATIONS[generation]["meta"][2]
    (device,) = break_down(reading.events)
    assert (device.pid, device.device, device.events, device.kernels) == (100, "cuda:0", 4, 3)
    (step,) = device.steps
    found = step.partition
    assert found.window_ns == 1000
    assert (found.compute_ns, found.overlap_ns, found.exposed_communication_ns) == (250, 100, 100)
    assert (found.exposed_copies_ns, found.idle_ns) == (20, 630)


def test_kernels_belong_to_the_range_around_their_launch(tmp_path):
    rows = rows_in(training_report(tmp_path / "report.sqlite"))
    kernels = {name: place for place, name in enumerate(rows["name"])}
    owned = {name: rows["phase"][place] for name, place in kernels.items() if ":" not in name}
    assert owned["ampere_sgemm"] == "forward"  # it runs while backward is launched
    assert owned["adam"] == "optimizer"
    # Launched by the thread of autograd, inside the range of the main thread.
    assert rows["phase"][rows["class"] == "communication"].tolist() == ["backward"]
    product = kernels["ampere_sgemm"]
    assert rows["operator"][product] == "aten::mm"
    assert rows["flops"][product] == 2 * 4 * 5 * 6


def test_the_range_that_starts_the_capture_is_no_module(tmp_path):
    """Captures of a compiled model have no ranges of modules."""
    for name, found in ((CAPTURE_RANGE, []), ("mine", ["mine"])):
        path = one_kernel(tmp_path / f"{name}.sqlite", "sgemm", around=name).write()
        summary = breakdown_of_files([path], "t")[0].summary
        assert [layer.path for layer in summary.layers] == found


def test_processes_of_one_report_are_ranks(tmp_path):
    """Their correlation ids are the same: a join by id alone would mix them up."""
    reading = read_files([training_report(tmp_path / "report.sqlite", pids=(300, 200))])
    rows = rows_of(reading.events)
    launched = rows["launch_ns"] > 0
    assert (rows["thread"][launched] <= 2).all()
    found = break_down(reading.events)
    assert [(device.pid, device.rank) for device in found] == [(200, 0), (300, 1)]
    # The process that was written second runs its all-reduce 30 ns longer: the other waited less.
    uses = [use for device in found for use in device.collectives]
    times = [(use.time_ns, use.transfer_ns, use.waiting_ns) for use in uses]
    assert times == [(230, 200, 30), (200, 200, 0)]


def test_missing_tables(tmp_path):
    """Without launches and ranges, device events still count; only their phases are unknown."""
    report = Report(tmp_path / "report.sqlite")
    report.kernel("k", 0, 10, pid=1, correlation=1)
    breakdown, _ = breakdown_of_files([report.write()], "mine")
    (device,) = breakdown.devices
    assert device.span.compute_ns == 10
    assert (device.bound.host_ns, device.steps, device.phases) == (0, [], [])
    assert any("1 of 1 device events have no launch" in note for note in breakdown.notes)
    # The capture range never began.
    report = Report(tmp_path / "empty.sqlite")
    report.range("phase:step", 0, 10, pid=1, tid=1)
    breakdown, reading = breakdown_of_files([report.write()], "mine")
    assert (breakdown.status, breakdown.reason) == ("failed", NO_EVENTS)
    assert breakdown.devices == []
    assert len(reading.events) == 1  # the range


@pytest.mark.parametrize(
    ("payload", "size"),
    [
        ('{"Message size [bytes]": 4096, "Reduction operation": "Sum"}', 4096),
        ("[" * 5000 + "]" * 5000, None),
    ],
)
def test_size_of_a_message_in_the_payload_of_nccl(tmp_path, payload, size):
    kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    report = one_kernel(tmp_path / "r.sqlite", kernel, around="ncclAllReduce")
    report.database.execute("UPDATE NVTX_EVENTS SET jsonText = ?", (payload,))
    found = device_in(report.write()).collectives
    assert [(c.collective, c.bytes) for c in found] == [("all_reduce", size)]


def test_memory_of_devices(tmp_path):
    """Allocations and releases add up by device, without those of the host and impossible ones."""
    report = Report(tmp_path / "report.sqlite")
    report.kernel("sgemm", 0, 9, pid=1, correlation=1)

    def event(start: object, size: object, kind: int, operation: int, device: int = 0) -> None:
        row = {"start": start, "globalPid": global_id(1), "deviceId": device, "bytes": size}
        row |= {"memKind": kind, "memoryOperationType": operation}
        report.insert("CUDA_GPU_MEMORY_USAGE_EVENTS", row)

    event(30, 100, 2, 1)  # allocated before the recording
    event(10, 500, 2, 0)
    event(20, 500, 2, 1)
    event(40, 70, 5, 0)
    event(50, 8, 2, 0, device=1)
    event(15, 1000, 1, 0)  # of the host
    event(16, -1, 2, 0)
    event(None, 4, 2, 0)
    event(17, 4, 2, 7)
    rows = rows_in(report.write())
    memory = rows.where(rows.equal("kind", "memory"))
    found = zip(*(memory[name].tolist() for name in ("device", "t0_ns", "bytes")), strict=True)
    assert sorted(found) == [
        ("cuda:0", 10, 600),
        ("cuda:0", 20, 100),
        ("cuda:0", 30, 0),
        ("cuda:0", 40, 70),
        ("cuda:1", 50, 8),
    ]
