"""Throughputs derived from the turns, so that variants differ only by their ratios.

The machine drifts between consecutive runs, so their throughputs may contradict the ratios, which
come from adjacent windows. Therefore the throughput of the reference is taken over all its
sessions, and that of any other variant is its ratio times this.
"""

from statistics import median

from schemas.results import Interval, VariantResult
from transformer_core.decide.intervals import range_of
from transformer_core.decide.study_results import StudyResults


def session_rates(results: StudyResults) -> list[float]:
    """Non-padding tokens per second of the baseline in each of its sessions with any variant.

    Variants that took turns in the same sessions share them; each counts once.
    """
    baseline = results.study.baseline
    rates: dict[tuple[str, int], float] = {}
    for run in results.paired_runs:
        for session in run.sessions:
            windows = session.windows(baseline)
            seconds = sum(window.seconds for window in windows)
            if seconds:
                tokens = sum(window.tokens for window in windows)
                rates.setdefault((session.started, session.number), tokens / seconds)
    return list(rates.values())


def throughputs(results: StudyResults) -> dict[str, Interval]:
    """Tokens per second by variant, for the baseline and those that took turns with it.

    The baseline's interval is the range of its sessions; another's is that of its ratio.
    """
    rates = session_rates(results)
    if not rates:
        return {}
    middle = median(rates)
    found = {results.study.baseline: range_of(rates)}
    return found | {
        name: comparison.speedup.mapped(lambda ratio: middle * ratio)
        for name, comparison in results.comparisons.items()
        if comparison.speedup is not None
    }


def epoch_seconds(result: VariantResult, throughput: Interval | None) -> float | None:
    """Seconds per epoch at this throughput; null without one."""
    if result.epoch_seconds is None or result.tokens_per_second is None or throughput is None:
        return None
    return result.epoch_seconds * result.tokens_per_second.median / throughput.median
