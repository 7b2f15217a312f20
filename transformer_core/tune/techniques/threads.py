"""Threads on cores, by environment variables of OpenMP, which torch uses on CPUs.

A thread that the system moves to another core loses its caches, and a thread on another NUMA node,
or far from the GPU, has slow access to memory. OpenMP binds the first thread to the first of
OMP_PLACES when torch is imported. Everything that this thread starts later, such as the workers of
data loaders, inherits its CPUs. PyTorch, "Performance Tuning Guide", and
https://gcc.gnu.org/onlinedocs/libgomp/OMP_005fPLACES.html.

Sides take turns, so they can all be bound to the same cores. While a side waits for its turn, its
main thread is blocked in the kernel, and its other threads soon are too, unless OMP_WAIT_POLICY lets
them spin for ever. Another number of threads changes the order of sums.
"""

import os
from itertools import groupby
from pathlib import Path
from typing import Any

import psutil

from transformer_core.tune.techniques.technique import Technique

_SYSTEM = Path("/sys/devices/system")
BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""If one of these variables is set, the user binds threads already."""


class PhysicalCores(Technique):
    name = "physical_cores"
    words = "one thread for each physical core"
    group = "threads"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] != "cpu":
            return "the model is on a GPU"
        physical, logical = psutil.cpu_count(logical=False), psutil.cpu_count()
        if not physical or physical == logical:
            return f"all {logical} cores are physical cores already"
        if facts["threads"] <= physical:
            return (
                f"the script computes with {facts['threads']} threads on {physical} physical cores"
            )
        return None

    def environment(self, facts: dict[str, Any]) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(psutil.cpu_count(logical=False) or 1)}


class Affinity(Technique):
    group = "threads"

    def places(self, facts: dict[str, Any]) -> list[list[int]]:
        """The CPUs of each place. Each thread is bound to one place, the first thread to the first."""
        raise NotImplementedError

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["world"] > 1 or facts["devices"] > 1:
            return "several processes would be bound to the same cores"
        if bound := [name for name in BINDING if name in os.environ]:
            return f"{bound[0]} is set already"
        if os.environ.get("OMP_WAIT_POLICY", "").lower() == "active":
            return "OMP_WAIT_POLICY is active: copies that wait for their turn would keep the cores busy"
        return None

    def environment(self, facts: dict[str, Any]) -> dict[str, str]:
        if not facts:
            return {}  # The script's first run.
        places = self.places(facts)
        count = len(physical([cpu for place in places for cpu in place]))
        asked = os.environ.get("OMP_NUM_THREADS", "")
        return {
            "OMP_NUM_THREADS": str(min(count, int(asked)) if asked.isdigit() else count),
            "OMP_PLACES": ",".join(map(_place, places)),
            "OMP_PROC_BIND": "true",
        }

    def without_effect(self) -> str | None:
        if not self.facts:
            return None
        bound = os.sched_getaffinity(0) == set(self.places(self.facts)[0])
        return None if bound else "this build of torch does not let OpenMP bind its threads"


class PinnedThreads(Affinity):
    name = "pinned_threads"
    words = "each thread bound to one physical core"

    def places(self, facts: dict[str, Any]) -> list[list[int]]:
        return [[cpu] for cpu in physical(facts["cpus"])]

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] != "cpu":
            return "the model is on a GPU"
        if facts["threads"] < 2:
            return "the script computes with one thread"
        if len(self.places(facts)) < 2:
            return "the script has one physical core"
        if any(loader["workers"] for loader in facts["loaders"]):
            return "the workers of the data loader would share the core of the first thread"
        return super().obstacle(facts)


class OneNode(Affinity):
    name = "one_numa_node"
    words = "the process bound to one NUMA node, with one thread for each of its cores"

    def places(self, facts: dict[str, Any]) -> list[list[int]]:
        return [max(nodes(facts["cpus"]), key=len)]

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] != "cpu":
            return "the model is on a GPU"
        if len(nodes(facts["cpus"])) < 2:
            return "the script has only the cores of one NUMA node"
        return super().obstacle(facts)


class CoresNearGpu(Affinity):
    name = "cores_near_gpu"
    words = "the process bound to the CPUs next to its GPU"

    def places(self, facts: dict[str, Any]) -> list[list[int]]:
        return [sorted({*facts["near"]} & {*facts["cpus"]})]

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] != "cuda":
            return "the script uses no GPU"
        if not facts["near"]:
            return "the driver does not tell which CPUs are next to the GPU"
        (near,) = self.places(facts)
        if not near:
            return "the script may not run on the CPUs next to its GPU"
        if near == facts["cpus"]:
            return "all CPUs of the script are next to its GPU"
        return super().obstacle(facts)


def physical(cpus: list[int]) -> list[int]:
    """The first logical CPU of each physical core among ``cpus``."""
    found: dict[str, int] = {}
    for cpu in sorted(cpus):
        file = _SYSTEM / f"cpu/cpu{cpu}/topology/thread_siblings_list"
        found.setdefault(file.read_text() if file.is_file() else str(cpu), cpu)
    return list(found.values())


def nodes(cpus: list[int]) -> list[list[int]]:
    """``cpus`` by NUMA node, without nodes that have none of them."""
    found = []
    for file in sorted(_SYSTEM.glob("node/node[0-9]*/cpulist")):
        ends = [part.split("-") for part in file.read_text().strip().split(",") if part]
        here = {cpu for end in ends for cpu in range(int(end[0]), int(end[-1]) + 1)}
        found.append(sorted(here.intersection(cpus)))
    return [node for node in found if node] or [cpus]


def _place(cpus: list[int]) -> str:
    """CPUs as OpenMP writes them: {first:count,...}."""
    runs = groupby(enumerate(cpus), key=lambda each: each[1] - each[0])
    found = [[cpu for _, cpu in run] for _, run in runs]
    return "{" + ",".join(f"{r[0]}:{len(r)}" if len(r) > 1 else str(r[0]) for r in found) + "}"
