"""A study from its settings to everything that the rules need to know of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.config.claims import Claim
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.errors import ConfigError
from schemas.results.comparisons import Pair
from transformer_core.study.certification import ShortRun, short_runs
from transformer_core.study.checks.study_rules import contradictions
from transformer_core.study.compared_pairs import compared_pairs, family_pairs
from transformer_core.study.declarations.claims_file import claim_pairs
from transformer_core.study.declarations.compositions import with_compositions
from transformer_core.study.declarations.quick_stage import at_stage
from transformer_core.study.link_trials import TrialSpecs, link_trials
from transformer_core.study.resolve import VARIANTS_FILE, check_study, resolve_all
from transformer_core.study.variants import Declared


@dataclass(frozen=True)
class PlannedStudy:
    """A study and what follows from it."""

    study: Study
    variants: dict[str, Variant]
    """The variants of the file, and the compositions that the study names."""
    specs: dict[str, RunSpec]
    """The run specs of its variants, by name."""
    short_runs: dict[str, ShortRun]
    """The trainings that its certificates compare, by name."""
    extra_pairs: list[tuple[str, str]]
    """Comparisons (variant, reference) that claims and families ask for."""
    pairs: list[Pair]
    """All comparisons."""
    link_trials: dict[str, TrialSpecs]
    """The trials of the emulated link, by name."""


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
