"""How long what follows the comparisons takes: verdicts, the search and what it has trained, the
report."""

from collections.abc import Mapping

from schemas.config.study import Study
from transformer_core.common.study_clock import JobTimes

FOLLOWING = ("compare", "families", "claims", "search", "tables", "figures", "page")
"""Rules whose jobs come after the comparisons."""
LIGHT = ("combine", "certify", "breakdown", "utilisation")
"""Rules whose jobs read results and compute little, like most of those that follow."""
HEAVIER = {"figures": 5.0, "tables": 2.0, "page": 2.0}
"""Those that take longer than the others, and about how much, until one has been timed."""


def kept_for_the_rest(study: Study, pairs: int, jobs: Mapping[str, JobTimes]) -> float:
    """Seconds that are kept for what follows ``pairs`` comparisons: as long as it took before on
    this machine, else as the jobs before it suggest."""
    light = max((jobs[rule].mean for rule in LIGHT if rule in jobs), default=1.0)
    total = pairs * jobs["pair"].mean if "pair" in jobs else 0.1 * pairs * light
    for rule in FOLLOWING:
        if rule in jobs:
            total += jobs[rule].mean
        elif rule == "search":
            total += _search(study, jobs)
        else:
            total += HEAVIER.get(rule, 1.0) * light
    return total + _quality(study, jobs)


def _search(study: Study, jobs: Mapping[str, JobTimes]) -> float:
    """Its budget, the short runs of a certificate, and a profile."""
    if study.search is None or not study.search.budget:
        return 0.0
    runs = [jobs[rule].mean for rule in ("short_run", "profile") if rule in jobs]
    return study.search.budget + 2 * sum(runs)


def _quality(study: Study, jobs: Mapping[str, JobTimes]) -> float:
    """The trainings to a quality, which begin anew with another recommendation: half of their
    budget, until one has been timed."""
    if study.quality is None:
        return 0.0
    return jobs["quality"].mean if "quality" in jobs else study.quality.budget / 2
