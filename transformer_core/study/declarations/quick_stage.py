"""Stages of a study: a small part of it first, whose results the whole takes up."""

from typing import Any

from schemas.config.study import Study
from schemas.errors import ConfigError, ConfigProblem, nearest

QUICK_VARIANTS = 3
"""Variants of the quick stage beside the baseline."""
STAGES = ("quick", "all")


def at_stage(study: Study, stage: Any, file: str = "study") -> Study:
    """The part of ``study`` that belongs to a stage; ConfigError for an unknown one.

    ``quick`` is the baseline and the first variants beside it, with what compares and certifies
    them, and without memory, search, quality and projection: a report after a few minutes. Runs,
    certificates and profiles have the same names and specs there as in ``all``, which goes on from
    them; only what takes turns in other groups is timed anew.
    """
    if stage == "all":
        return study
    if stage != "quick":
        message, remedy = "is not a stage", nearest(str(stage), STAGES)
        raise ConfigError([ConfigProblem(file, "stage", stage, message, remedy)])
    others = [name for name in study.variants if name != study.baseline][:QUICK_VARIANTS]
    variants = [name for name in study.variants if name in (study.baseline, *others)]
    return study.model_copy(
        update={
            "variants": variants,
            "comparisons": [pair for pair in study.comparisons if {*pair} <= {*variants}],
            "memory": None,
            "search": None,
            "quality": None,
            "projection": None,
            "link_check": None,
        }
    )
