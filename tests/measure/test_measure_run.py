"""The environment, order and end of a run's workers."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from worker_builders import gone, spec

from schemas.errors import ConfigError, Unsupported
from transformer_core.measure.timed_run import TimedRunOrder
from transformer_core.run.launcher import (
    KEPT,
    KEPT_KERNELS,
    allocator_environment,
    worker_environment,
)
from transformer_core.run.order import Order
from transformer_core.run.statuses import end_with_parent
from transformer_core.run.supervisor import run_workers, wait_for

TELLING = """
import json, os, pathlib, sys, torch
def main():
    told = {"threads": torch.get_num_threads(), "environment": dict(os.environ)}
    pathlib.Path(sys.argv[1]).with_name("told").write_text(json.dumps(told))
"""


@pytest.mark.slow
def test_workers_get_their_threads_and_allocator_settings_whatever_snakemake_set(
    monkeypatch, tmp_path
):
    """Snakemake sets MKL_NUM_THREADS to the threads of the job, and torch listens to it first."""
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    (tmp_path / "telling.py").write_text(TELLING)
    monkeypatch.setattr(Order, "worker", "telling")
    assert run_workers(Order(spec=spec("single", threads=1), output=tmp_path, command="")) == 0
    told = json.loads((tmp_path / "told").read_text())
    assert told["threads"] == 1
    environment = told["environment"]
    assert environment["MALLOC_TRIM_THRESHOLD_"] == KEPT["MALLOC_TRIM_THRESHOLD_"]
    assert environment["MALLOC_MMAP_THRESHOLD_"] == "65536", "the user's own"


def test_a_process_whose_parent_has_ended_already_ends():
    """The kernel tells only of an end that comes after the request."""
    for parent, code in ((os.getpid(), 0), (os.getppid(), -signal.SIGKILL)):
        end = partial(end_with_parent, parent)
        assert subprocess.run(["true"], preexec_fn=end).returncode == code


def test_allocators_are_chosen_by_environment(monkeypatch):
    assert allocator_environment("default") == {}
    assert allocator_environment("kept") == KEPT
    assert allocator_environment("huge_pages")["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    monkeypatch.setattr(
        "ctypes.util.find_library", lambda name: {"tcmalloc_minimal": "libt.so.4"}.get(name)
    )
    assert allocator_environment("tcmalloc") == {"LD_PRELOAD": "libt.so.4"}
    chosen = spec("single", allocator="tcmalloc")
    for own, both in ({}, "libt.so.4"), ({"LD_PRELOAD": "own.so"}, "libt.so.4:own.so"):
        assert worker_environment(chosen, own)["LD_PRELOAD"] == both
    with pytest.raises(Unsupported, match="jemalloc, which is not installed"):
        allocator_environment("jemalloc")
    monkeypatch.setattr("ctypes.util.find_library", lambda name: "libj.so.2")
    assert allocator_environment("jemalloc") == {
        "LD_PRELOAD": "libj.so.2",
        "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always",
    }


def test_an_order_is_read_as_it_was_written(tmp_path):
    order = TimedRunOrder(
        spec=spec("ddp", nodes=2), data=Path("d"), output=tmp_path, command="again", repeat=2
    )
    first, second = order.write(), order.write(node_rank=1)
    assert (first.name, second.name) == ("order.json", "host-1-order.json")
    for file in (first, second):
        read = TimedRunOrder.read(file)
        assert read == order
        assert read.spec.digest() == order.spec.digest()
    first.write_text(json.dumps(json.loads(first.read_text()) | {"seeds": 1}))
    with pytest.raises(ConfigError, match="seeds"):
        TimedRunOrder.read(first)


RUN = """
import sys
from pathlib import Path
from schemas.config.run_spec import RunSpec
from transformer_core.run import supervisor
from transformer_core.run.order import Order

launcher, worker, folder = sys.argv[1:]
supervisor.launcher = lambda spec, name, place: [sys.executable, "-c", launcher, worker]
supervisor.run_workers(Order(spec=RunSpec(variant="v"), output=Path(folder), command=""))
"""
LAUNCHER = """
import os, subprocess, sys
print(os.getpid(), flush=True)
subprocess.run([sys.executable, "-c", sys.argv[1]])
"""
WORKER = """
import os, sys, time, types
from pathlib import Path
name = "transformer_core.parallel.lost_ranks"  # imports torch
sys.modules[name] = types.ModuleType(name)
from transformer_core.run.statuses import supervised
with supervised(Path(".")):
    print(os.getpid(), flush=True)
    time.sleep(120)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_killed_run_leaves_neither_launcher_nor_worker(tmp_path):
    command = [sys.executable, "-c", RUN, LAUNCHER, WORKER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as run:
        started = [int(run.stdout.readline()) for _ in ("launcher", "worker")]
        run.kill()
        run.wait()
        assert all(map(gone, started)), "it outlived its run"


TWICE = """
import torch

torch.set_num_threads(1)
layer = torch.nn.Linear(256, 256).bfloat16()
for _ in range(2):
    print("AGAIN", flush=True)
    for rows in range(100, 110):
        layer(torch.ones(rows, 256, dtype=torch.bfloat16)).sum().backward()
"""


def made_again(kept: int) -> int:
    """Kernels that a process makes again for known shapes, as oneDNN logs them."""
    environment = os.environ | dict.fromkeys(KEPT_KERNELS, str(kept)) | {"ONEDNN_VERBOSE": "2"}
    command = [sys.executable, "-c", TWICE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split("AGAIN")[2].count("create:cache_miss")


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="oneDNN makes no kernels for bfloat16 on this CPU",
)
def test_onednn_caches_no_more_kernels_than_allowed():
    assert made_again(1_000) == 0
    assert made_again(8) >= 10, "one for each shape at least"


@pytest.mark.parametrize("ignored", [False, True])
def test_a_job_in_a_shells_background_hands_on_no_request_to_stop(ignored):
    """The shell had it ignore Ctrl-C; its fork does not."""
    asked: list[int] = []
    child: Any = SimpleNamespace(send_signal=asked.append)
    child.wait = lambda: signal.raise_signal(signal.SIGINT) or len(asked)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else lambda *_: None)
    try:
        assert wait_for(child) == (0 if ignored else -signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert asked == ([] if ignored else [signal.SIGINT])
