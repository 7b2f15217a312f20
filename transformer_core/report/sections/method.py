"""How the numbers were obtained."""

from typing import Any

from transformer_core.common.study_clock import CLOCK, read_clock
from transformer_core.decide import compare
from transformer_core.decide import intervals as medians
from transformer_core.decide.study_results import StudyResults
from transformer_core.measure import session_ratio


def context(results: StudyResults) -> dict[str, Any]:
    """Constants of the statistics, and the time that jobs took."""
    jobs = read_clock(results.folder / CLOCK.name).jobs
    return {
        "jobs": sorted(jobs.items(), key=lambda job: -job[1].seconds),
        "jobs_seconds": sum(times.seconds for times in jobs.values()),
        "confidence": medians.CONFIDENCE,
        "resamples": medians.RESAMPLES,
        "fewest_samples": medians.FEWEST_SAMPLES,
        "input_wait_limit": compare.INPUT_WAIT_LIMIT,
        "trim": session_ratio.TRIM,
    }
