"""Bytes that torch's CPU allocator has handed out."""

import torch

from transformer_core.measure.allocations import CpuAllocations

N = 50_000


def test_counts_at_marks_and_peaks_between_them() -> None:
    with CpuAllocations() as counted:
        counted.mark("start")
        x = torch.ones(N)
        counted.mark("one")
        y = x + torch.ones(N)
        counted.mark("two")
        del y
        counted.mark("two")  # the first of equal marks counts
        counted.mark("end")
    assert counted.at("start") == 0
    assert counted.at("one") == 4 * N
    assert counted.at("two") == 8 * N
    assert counted.at("end") == 4 * N
    assert counted.at("never") is None
    assert counted.peak("start", "one") == 4 * N
    assert counted.peak("one", "two") == 12 * N
    assert counted.peak("two", "end") == 8 * N


def test_pieces_of_an_earlier_count_do_not_count() -> None:
    with CpuAllocations() as counted:
        counted.mark("start")
        old = torch.ones(N)
    with CpuAllocations() as counted:
        counted.mark("start")
        x = torch.ones(2 * N)
        del old
        counted.mark("end")
    assert counted.at("start") == 0
    assert counted.at("end") == x.nbytes


def test_work_space_inside_a_kernel_counts() -> None:
    values = torch.rand(N)
    with CpuAllocations() as counted:
        counted.mark("start")
        values.sort()
        counted.mark("end")
    results = 4 * N + 8 * N
    assert counted.peak("start", "end") >= results
