"""Probes of the machine, CPU time of other processes, and peak memory."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from transformer_core.machine import machine_state, peak_memory
from transformer_core.machine.machine_state import CpuTime, cpu_time
from transformer_core.parallel import nvml


def test_the_shortest_call_counts():
    # Calls of 20 and of 10 ms; then the 50 ms are over.
    times = iter([0.0, 0.0, 0.02, 0.02, 0.02, 0.03, 0.06])
    assert machine_state._fastest(lambda: None, lambda: next(times)) == pytest.approx(0.01)


@pytest.mark.gpu
def test_probe_of_a_gpu_leaves_no_memory_behind():
    device = torch.device("cuda", 0)
    square = torch.ones(64, 64, device=device)
    square @ square  # the first product makes the workspace of cuBLAS, which stays
    before = torch.cuda.memory_allocated(device)
    found = machine_state.probe_cuda(device)
    assert found.device == "cuda:0"
    assert found.matmul_flops_per_second > 1e11
    assert torch.cuda.memory_allocated(device) == before


_ORPHAN = """
import subprocess, sys
quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
print(subprocess.Popen([sys.executable, "-c", "while True: pass"], **quiet).pid)
"""


@pytest.mark.slow
def test_own_and_named_processes_are_not_foreign():
    before = cpu_time()
    shell = [sys.executable, "-c", _ORPHAN]
    orphan = int(subprocess.run(shell, check=True, capture_output=True, text=True).stdout)
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        while min(psutil.Process(pid).cpu_times().user for pid in (orphan, child.pid)) < 0.5:
            time.sleep(0.02)
        unnamed, named = cpu_time(), cpu_time([orphan])
    finally:
        os.kill(orphan, signal.SIGKILL)
        child.kill()
        child.wait()
    after = cpu_time()
    assert None not in (before, unnamed, named, after)
    # Sums of ticks are rounded.
    assert unnamed.own > before.own + 0.4, "children count"
    assert named.own > unnamed.own + 0.4, "whoever has started a named process"
    assert after.own > before.own + 0.4, "children that have ended count"


def test_foreign_time_is_the_rest_and_never_negative():
    assert CpuTime(10.0, 4.0).foreign_until(CpuTime(20.0, 9.0)) == 5.0
    assert CpuTime(10.0, 4.0).foreign_until(CpuTime(11.0, 5.02)) == 0.0


MIB = 1 << 20


PEAKS = """
import sys
sys.modules["torch"], sys.device = sys, None  # torch alone takes as much as the parent below
from transformer_core.machine.peak_memory import peak_rss_bytes
peaks = [peak_rss_bytes()]
held = b"x" * (1 << 27)
peaks.append(peak_rss_bytes())
del held
print(*peaks, peak_rss_bytes())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_the_peak_is_that_of_this_process_and_stays():
    """A fresh process does not inherit the peak of its parent."""
    parent = (
        "import os, sys; held = b'x' * (1 << 28);"
        f"os.execv(sys.executable, [sys.executable, '-c', {PEAKS!r}])"
    )
    done = subprocess.check_output([sys.executable, "-c", parent], text=True)
    first, grown, last = map(int, done.split())
    assert first < 200 * MIB
    assert first + 100 * MIB < min(grown, last)


@pytest.mark.parametrize(("platform", "factor"), [("linux", 1024), ("darwin", 1)])
def test_without_proc(monkeypatch, platform, factor):
    monkeypatch.setattr(peak_memory, "_STATUS", Path("/nonexistent"))
    monkeypatch.setattr(peak_memory.sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=7))
    assert peak_memory.peak_rss_bytes() == 7 * factor


@pytest.mark.parametrize(
    ("device", "peaks"),
    [
        ("cpu", ("cpu", None, None, None)),
        ("cuda:0", ("cuda:0", 100, 200, 300)),
        ("cuda", ("cuda:2", 102, 202, 302)),
    ],
)
def test_peaks_are_those_of_the_device(monkeypatch, device, peaks):
    reset = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda at: 100 + at)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda at: 200 + at)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    monkeypatch.setattr(nvml, "device_memory_used", lambda at: 300 + at)
    peak_memory.reset_peak(torch.device(device))
    assert reset == ([] if device == "cpu" else [torch.device(device)])
    found = peak_memory.rank_memory(3, torch.device(device))
    device_bytes = found.allocated_bytes, found.reserved_bytes, found.nvml_bytes
    assert (found.device, *device_bytes) == peaks
    assert found.rank == 3
    assert found.rss_bytes > 0


@pytest.mark.gpu
def test_peaks_of_a_real_device():
    device = torch.device("cuda:0")
    peak_memory.reset_peak(device)
    before = peak_memory.rank_memory(0, device)
    held = torch.ones(256 * MIB, dtype=torch.uint8, device=device)
    torch.cuda.synchronize(device)
    after = peak_memory.rank_memory(0, device)
    assert after.allocated_bytes - before.allocated_bytes >= held.numel()
    assert after.reserved_bytes >= after.allocated_bytes
    assert after.nvml_bytes >= after.reserved_bytes
