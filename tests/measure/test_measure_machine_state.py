"""Probes of the machine, and what other processes take of it."""

import multiprocessing
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from transformer_core.machine import machine_state
from transformer_core.machine.machine_state import CpuTime, cpu_time
from transformer_core.parallel import nvml

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_probe_of_the_cpu() -> None:
    found = machine_state.probe_cpu()
    assert found.device == "cpu"
    assert found.matmul_flops_per_second > 0
    assert found.copy_bytes_per_second > 0


def test_the_shortest_call_counts() -> None:
    # Calls of 20 and of 10 ms; then the 50 ms are over.
    times = iter([0.0, 0.0, 0.02, 0.02, 0.02, 0.03, 0.06])
    assert machine_state._fastest(lambda: None, lambda: next(times)) == pytest.approx(0.01)


@pytest.mark.gpu
@needs_gpu
def test_probe_of_a_gpu_leaves_no_memory_behind() -> None:
    device = torch.device("cuda", 0)
    before = torch.cuda.memory_allocated(device)
    found = machine_state.probe_cuda(device)
    assert found.device == "cuda:0"
    assert found.matmul_flops_per_second > 1e11
    assert torch.cuda.memory_allocated(device) == before


def _burn(seconds: float) -> None:
    while time.process_time() < seconds:
        pass


@pytest.mark.slow
def test_own_processes_are_not_foreign() -> None:
    before = cpu_time()
    assert before is not None
    child = multiprocessing.get_context("spawn").Process(target=_burn, args=(1e3,))
    child.start()
    # While it is there: what has ended is not below this process any more.
    while (during := cpu_time()) is not None and during.own - before.own < 0.5:
        assert child.is_alive()
    child.kill()
    child.join()


def test_foreign_time_is_what_is_left() -> None:
    assert CpuTime(10.0, 4.0).foreign_until(CpuTime(20.0, 9.0)) == 5.0
    assert CpuTime(10.0, 4.0).foreign_until(CpuTime(11.0, 5.02)) == 0.0


def test_what_the_kernel_does_not_tell_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError

    monkeypatch.setattr(psutil, "cpu_freq", refuse)
    monkeypatch.setattr(psutil, "sensors_temperatures", dict, raising=False)
    monkeypatch.setattr(nvml, "states", list)
    state = machine_state.machine_state([])
    assert (state.cpu_megahertz, state.cpu_celsius, state.gpus) == (None, None, [])


def test_the_hottest_sensor_of_the_cpu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = {
        "coretemp": [SimpleNamespace(current=55.0), SimpleNamespace(current=61.0)],
        "nvme": [SimpleNamespace(current=90.0)],
    }
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: readings, raising=False)
    assert machine_state.cpu_celsius() == 61.0
