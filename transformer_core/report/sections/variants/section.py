"""What the table of the variants shows."""

from typing import Any

from transformer_core.decide.comparisons.turn_throughput import epoch_seconds, throughputs
from transformer_core.decide.study_results import StudyResults


def context(results: StudyResults) -> dict[str, Any]:
    """Throughput and time per epoch by variant, from the turns, and the fastest equivalent one."""
    found = throughputs(results)
    certified = [name for name in found if results.certificates[name].status == "equivalent"]
    return {
        "fastest": max(certified, key=lambda name: found[name].median, default=None),
        "throughputs": found,
        "epochs": {
            name: epoch_seconds(result, found.get(name))
            for name, result in results.variants.items()
        },
    }
