"""What a process was really given, as its record of the hardware tells it."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from schemas.config.run_spec import RunSpec
from transformer_core.machine import hardware as process_settings
from transformer_core.machine.hardware import affinity, cuda_allocator, read_hardware
from transformer_core.run.launcher import worker_environment


@pytest.mark.parametrize(
    ("cores", "text"),
    [({5}, "cores 5"), ({0, 1, 2, 3}, "cores 0-3"), ({0, 1, 4, 6, 7}, "cores 0-1, 4, 6-7")],
)
def test_cores_are_told_in_runs(
    cores: set[int], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
    assert affinity() == text


def test_threads_with_a_core_of_their_own_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()
    masks = {own: {0, 1}}
    monkeypatch.setattr(os, "sched_getaffinity", lambda t: masks.get(t, {1}), raising=False)
    folder = SimpleNamespace(iterdir=lambda: [SimpleNamespace(name=str(own + i)) for i in range(3)])
    monkeypatch.setattr(process_settings, "_ROOT", _Root(folder))
    assert affinity() == "cores 0-1, 2 threads on one core each"


class _Root:
    """Stands for / where any path leads to one folder."""

    def __init__(self, folder: Any) -> None:
        self.folder = folder

    def __truediv__(self, _: str) -> Any:
        return self.folder


@pytest.mark.parametrize(
    ("backend", "segments", "text"),
    [
        ("native", [{"is_expandable": True}, {}], "native, segments that grow"),
        ("native", [{"is_expandable": False}], "native, segments of fixed size"),
        ("native", [], "native"),
        ("cudaMallocAsync", None, "cudaMallocAsync"),
    ],
)
def test_the_allocator_of_cuda_memory_is_told_by_its_segments(
    backend: str, segments: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in process_settings.CUDA_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: backend)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments or [])
    assert cuda_allocator() == text
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "a:b")
    assert cuda_allocator() == f"{text}, PYTORCH_ALLOC_CONF=a:b"


def test_without_cuda_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert cuda_allocator() is None
    found = read_hardware()
    assert (found.cuda_allocator, found.affinity) == (None, affinity())


PROGRAM = """
import torch
from transformer_core.machine.hardware import cuda_allocator
torch.ones(2**20, device="cuda")
print(cuda_allocator())
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("chosen", "segments"), [("default", "of fixed size"), ("expandable_segments", "that grow")]
)
def test_segments_are_as_the_run_spec_says(chosen: str, segments: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    content = {"variant": "v", "machine": {"cuda_allocator": chosen}}
    given = {k: v for k, v in os.environ.items() if k not in process_settings.CUDA_VARIABLES}
    environment = worker_environment(RunSpec.model_validate(content), given)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"native, segments {segments}" in done.stdout
