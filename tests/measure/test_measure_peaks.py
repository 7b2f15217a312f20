"""Peaks of memory on the host and on the device."""

import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from transformer_core.machine import peak_memory
from transformer_core.parallel import nvml

MIB = 1 << 20


@pytest.mark.slow
def test_peak_rss_grows_with_touched_memory_and_never_shrinks() -> None:
    before = peak_memory.peak_rss_bytes()
    held = bytearray(b"x" * (before // 2 + 64 * MIB))
    grown = peak_memory.peak_rss_bytes()
    assert grown >= before
    assert grown >= len(held)
    del held
    assert peak_memory.peak_rss_bytes() >= grown


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_fresh_process_does_not_inherit_the_peak_of_its_parent() -> None:
    child = "from transformer_core.machine.peak_memory import *; print(peak_rss_bytes())"
    parent = (
        "import os, sys; held = b'x' * (1 << 30);"
        f"os.execv(sys.executable, [sys.executable, '-c', {child!r}])"
    )
    command = [sys.executable, "-c", parent]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1000 * MIB


@pytest.mark.parametrize(("platform", "factor"), [("linux", 1024), ("darwin", 1)])
def test_without_proc(monkeypatch: pytest.MonkeyPatch, platform: str, factor: int) -> None:
    monkeypatch.setattr(peak_memory, "_STATUS", Path("/nonexistent"))
    monkeypatch.setattr(peak_memory.sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=7))
    assert peak_memory.peak_rss_bytes() == 7 * factor


def test_cpu_has_no_device_peaks() -> None:
    peak_memory.reset_peak(torch.device("cpu"))
    found = peak_memory.rank_memory(3, torch.device("cpu"))
    assert (found.rank, found.device) == (3, "cpu")
    assert found.rss_bytes > 0
    assert (found.allocated_bytes, found.reserved_bytes, found.nvml_bytes) == (None, None, None)


@pytest.mark.parametrize(("device", "index"), [("cuda:1", 1), ("cuda:0", 0), ("cuda", 2)])
def test_cuda_peaks_are_those_of_the_device(
    monkeypatch: pytest.MonkeyPatch, device: str, index: int
) -> None:
    reset = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda at: 100 + at)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda at: 200 + at)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    monkeypatch.setattr(nvml, "device_memory_used", lambda at: 300 + at)
    peak_memory.reset_peak(torch.device(device))
    assert reset == [torch.device(device)]
    found = peak_memory.rank_memory(0, torch.device(device))
    assert found.device == f"cuda:{index}"
    assert found.allocated_bytes == 100 + index
    assert found.reserved_bytes == 200 + index
    assert found.nvml_bytes == 300 + index


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_peaks_of_a_real_device() -> None:
    device = torch.device("cuda:0")
    peak_memory.reset_peak(device)
    before = peak_memory.rank_memory(0, device)
    held = torch.ones(256 * MIB, dtype=torch.uint8, device=device)
    torch.cuda.synchronize(device)
    after = peak_memory.rank_memory(0, device)
    assert before.allocated_bytes is not None
    assert after.allocated_bytes is not None
    assert after.reserved_bytes is not None
    assert after.nvml_bytes is not None
    assert after.allocated_bytes - before.allocated_bytes >= held.numel()
    assert after.reserved_bytes >= after.allocated_bytes
    assert after.nvml_bytes >= after.reserved_bytes
