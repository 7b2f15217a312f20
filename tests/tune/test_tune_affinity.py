"""Threads bound to cores: the cores on each machine, and that OpenMP binds the threads."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from transformer_core.tune.techniques import TECHNIQUES
from transformer_core.tune.techniques import threads as cores

PINNED, NODE, NEAR = (
    TECHNIQUES[name] for name in ("pinned_threads", "one_numa_node", "cores_near_gpu")
)
CPUS = list(range(8))
CPU: dict[str, Any] = {"device": "cpu", "threads": 4, "cpus": CPUS, "near": [], "loaders": []}
CPU |= {"world": 1, "devices": 1}
GPU = CPU | {"device": "cuda", "near": [2, 3, 6, 7]}


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """Two NUMA nodes of two cores each, with two hardware threads a core."""
    for cpu in CPUS:
        file = tmp_path / f"cpu/cpu{cpu}/topology/thread_siblings_list"
        file.parent.mkdir(parents=True)
        file.write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    for node, cpus in enumerate(("0-1,4-5", "2-3,6-7")):
        (tmp_path / f"node/node{node}").mkdir(parents=True)
        (tmp_path / f"node/node{node}/cpulist").write_text(f"{cpus}\n")
    monkeypatch.setattr(cores, "_SYSTEM", tmp_path)
    for name in (*cores.BINDING, "OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("technique", "facts", "places", "threads"),
    [
        (PINNED, CPU, "{0},{1},{2},{3}", 4),
        (PINNED, CPU | {"cpus": [1, 2, 5, 7]}, "{1},{2},{7}", 3),
        (NODE, CPU, "{0:2,4:2}", 2),
        (NODE, CPU | {"cpus": [0, 2, 3, 7]}, "{2:2,7}", 2),
        (NEAR, GPU, "{2:2,6:2}", 2),
        (NEAR, GPU | {"cpus": [0, 6]}, "{6}", 1),
    ],
)
def test_threads_are_bound_to_the_cores_of_the_machine(
    technique, facts, places, threads, monkeypatch
):
    assert technique.obstacle(facts) is None
    given = {"OMP_PLACES": places, "OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "true"}
    assert technique.environment(facts) == given
    lines = "; ".join([*technique.lines(facts), "printenv OMP_PLACES"])
    assert subprocess.check_output(["bash", "-c", lines], text=True) == f"{places}\n"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert technique.environment(facts)["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("technique", "facts", "why"),
    [
        (PINNED, GPU, "on a GPU"),
        (PINNED, CPU | {"threads": 1}, "with one thread"),
        (PINNED, CPU | {"cpus": [1, 5]}, "one physical core"),
        (PINNED, CPU | {"loaders": [{"workers": 2}]}, "workers of the data loader"),
        (PINNED, CPU | {"world": 2}, "several processes"),
        (NODE, GPU, "on a GPU"),
        (NODE, CPU | {"cpus": [0, 1, 5]}, "one NUMA node"),
        (NEAR, CPU, "no GPU"),
        (NEAR, GPU | {"near": []}, "does not tell"),
        (NEAR, GPU | {"cpus": [0, 1]}, "may not run"),
        (NEAR, GPU | {"cpus": [2, 3]}, "all CPUs"),
        (NEAR, GPU | {"devices": 2}, "several processes"),
        # Settings of the user are kept.
        (PINNED, CPU, "GOMP_CPU_AFFINITY"),
        (PINNED, CPU, "OMP_WAIT_POLICY"),
    ],
)
def test_it_says_why_it_cannot_be_tried(technique, facts, why, monkeypatch):
    if why.isupper():
        monkeypatch.setenv(why, "active")
    assert why in str(technique.obstacle(facts))


PROGRAM = """
import os, torch
torch.ones(2**22).add_(1)
print(os.environ.get("OMP_PLACES"), [sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")])
"""


@pytest.mark.slow
def test_openmp_binds_the_threads(monkeypatch):
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("needs 2 cores")
    monkeypatch.setattr(cores, "_SYSTEM", Path("/none"))  # each CPU is a core
    given = os.environ | PINNED.environment(CPU | {"cpus": cpus})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=given, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{{{cpus[0]}}},{{{cpus[1]}}} {[[cpu] for cpu in cpus]}\n"


def test_threads_that_stay_unbound_are_reported(monkeypatch):
    monkeypatch.setattr(PINNED, "facts", CPU, raising=False)
    for bound, effect in (({0}, True), ({0, 1}, False)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda thread, bound=bound: bound)
        assert (PINNED.without_effect() is None) == effect


@pytest.mark.parametrize(("threads", "tried"), [(2, False), (4, False), (8, True)])
def test_fewer_threads_are_tried_only_if_there_are_more_than_cores(threads, tried, monkeypatch):
    monkeypatch.setattr(cores.psutil, "cpu_count", lambda logical=True: 8 if logical else 4)
    why = TECHNIQUES["physical_cores"].obstacle(CPU | {"threads": threads})
    assert why == (
        None if tried else f"the script computes with {threads} threads on 4 physical cores"
    )
