"""One thread per physical core, where the machine has more logical cores."""

from typing import Any

import psutil

from transformer_core.tune.techniques.technique import Technique


class PhysicalCores(Technique):
    name = "physical_cores"
    words = "one thread for each physical core"
    group = "threads"
    rounding = "float32"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] != "cpu":
            return "the model is on a GPU"
        physical, logical = psutil.cpu_count(logical=False), psutil.cpu_count()
        if not physical or physical == logical:
            return f"all {logical} cores are physical cores already"
        return None

    def environment(self, facts: dict[str, Any]) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(psutil.cpu_count(logical=False) or 1)}
