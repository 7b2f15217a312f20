"""A study with its run specs, short runs and pairs, and the small stage that may be done first."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.config.claims import Claim
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.errors import ConfigError, ConfigProblem, nearest
from schemas.results.comparisons import Pair
from transformer_core.study.certification import ShortRun, short_runs
from transformer_core.study.checks import contradictions
from transformer_core.study.compared_pairs import compared_pairs, family_pairs
from transformer_core.study.link_trials import TrialSpecs, link_trials
from transformer_core.study.resolve import check_study, resolve_all
from transformer_core.study.study_files import claim_pairs
from transformer_core.study.variants import VARIANTS_FILE, Declared, with_compositions


@dataclass(frozen=True)
class PlannedStudy:
    """A study and what follows from it."""

    study: Study
    variants: dict[str, Variant]
    """The variants of the file, and the compositions that the study names."""
    specs: dict[str, RunSpec]  # the run specs of its variants, by name
    short_runs: dict[str, ShortRun]  # the trainings that its certificates compare, by name
    extra_pairs: list[tuple[str, str]]
    """Comparisons (variant, reference) that claims and families ask for."""
    pairs: list[Pair]  # all comparisons
    link_trials: dict[str, TrialSpecs]  # the trials of the emulated link, by name


def plan_study(
    settings: Mapping[str, Any],
    study_file: str,
    declared: Declared,
    claims: Mapping[str, Claim],
    variants_file: str = VARIANTS_FILE,
    stage: str = "all",
) -> PlannedStudy:
    """The plan of a ``stage`` of the study in ``settings``, which ``study_file`` holds; ConfigError
    with all that is wrong with it."""
    study = check_study(settings, study_file)
    problems = list(contradictions(study, study_file))
    study = at_stage(study, stage, study_file)
    variants = declared.variants
    try:
        variants = with_compositions(variants, study.variants, study_file)
        specs = resolve_all(study, variants, study_file, variants_file)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    extra = claim_pairs(claims, study) + family_pairs(declared.families, study)
    return PlannedStudy(
        study,
        variants,
        specs,
        short_runs(study, variants, specs, study_file, variants_file),
        extra,
        compared_pairs(study, extra, study_file),
        link_trials(study, file=study_file),
    )


QUICK_VARIANTS = 3  # variants of the quick stage beside the baseline
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
