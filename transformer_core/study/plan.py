"""The plan of a study: run specs, short runs, pairs, trials of an emulated link, and its quick
stage."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.base import kinds_of, merge
from schemas.config.claims import Claim
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.errors import ConfigError, ConfigProblem, nearest
from schemas.results.comparisons import Pair
from transformer_core.common.yaml_files import check_entries
from transformer_core.study.certification import ShortRun, short_runs
from transformer_core.study.checks import contradictions
from transformer_core.study.compared_pairs import compared_pairs, family_pairs
from transformer_core.study.resolve import check_study, resolve_all
from transformer_core.study.study_files import claim_pairs
from transformer_core.study.variants import Declared, with_compositions

LINK_CHECKS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "small_buckets": {"parallel": {"bucket_mb": 0.25}},
    "fp16_compress": {"parallel": {"hook": {"kind": "compress", "dtype": "fp16"}}},
    "accumulation_sync": {
        "training": {"accumulation": {"micro_batches": 4, "synchronise": "every"}}
    },
    "accumulation_no_sync": {
        "training": {"accumulation": {"micro_batches": 4, "synchronise": "last"}}
    },
}
"""Changes to DistributedDataParallel on which the emulated link is checked."""


@dataclass(frozen=True)
class TrialSpecs:
    change: str  # name of the change to DistributedDataParallel
    bandwidth: float  # bits per second
    real: RunSpec
    emulated: RunSpec


def link_trials(study: Study, file: str = "study") -> dict[str, TrialSpecs]:
    """Every change at every bandwidth that the study checks, by name.

    Raises ConfigError if the sections of the study do not make a run spec.
    """
    if study.link_check is None:
        return {}
    shared = study.model_dump(mode="json", include=set(RunSpec.model_fields))
    trials = {}
    for bandwidth in study.link_check.bandwidths:
        for change, fields in LINK_CHECKS.items():
            specs = []
            for name, emulate in (("real_link", False), ("emulated_link", True)):
                link = {"bandwidth": bandwidth, "emulate": emulate}
                machine = {"nodes": 2, "devices_per_node": 1, "link": link}
                data = merge(shared, {"parallel": {"kind": "ddp"}, "machine": machine})
                data = merge(data, fields, kinds_of(RunSpec))
                specs.append(check_entries(data | {"variant": name}, RunSpec, file))
            trials[f"{change}_{bandwidth / 1e6:.15g}mbit"] = TrialSpecs(change, bandwidth, *specs)
    return trials


@dataclass(frozen=True)
class PlannedStudy:
    study: Study
    variants: dict[str, Variant]
    """The variants in the file, and the compositions that the study names."""
    specs: dict[str, RunSpec]  # run specs of its variants, by name
    short_runs: dict[str, ShortRun]  # trainings that its certificates compare, by name
    extra_pairs: list[tuple[str, str]]
    """Comparisons (variant, reference) that claims and families ask for."""
    pairs: list[Pair]  # all comparisons
    link_trials: dict[str, TrialSpecs]  # trials of the emulated link, by name


def plan_study(
    settings: Mapping[str, Any],
    study_file: str,
    declared: Declared,
    claims: Mapping[str, Claim],
    stage: str = "all",
) -> PlannedStudy:
    """The plan of a ``stage`` of the study with these ``settings`` from ``study_file``; ConfigError
    with all problems."""
    study = check_study(settings, study_file)
    problems = list(contradictions(study, study_file))
    study = at_stage(study, stage, study_file)
    variants = declared.variants
    try:
        variants = with_compositions(variants, study.variants, study_file)
        specs = resolve_all(study, variants, study_file)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    extra = claim_pairs(claims, study) + family_pairs(declared.families, study)
    return PlannedStudy(
        study,
        variants,
        specs,
        short_runs(study, variants, specs, study_file),
        extra,
        compared_pairs(study, extra, study_file),
        link_trials(study, file=study_file),
    )


QUICK_VARIANTS = 3  # variants of the quick stage besides the baseline
STAGES = ("quick", "all")


def at_stage(study: Study, stage: Any, file: str = "study") -> Study:
    """The part of ``study`` that belongs to a stage; ConfigError for an unknown one.

    ``quick`` compares and certifies the baseline and the first few variants, without memory, search,
    quality and projection: it gives a report after a few minutes. Its runs, certificates and
    profiles are those of ``all``, which reuses them; only comparisons that take turns in other
    groups are timed again.
    """
    if stage == "all":
        return study
    if stage != "quick":
        message, remedy = "is not a stage", nearest(str(stage), STAGES)
        raise ConfigError([ConfigProblem(file, "stage", stage, message, remedy)])
    others = [name for name in study.variants if name != study.baseline][:QUICK_VARIANTS]
    variants = [name for name in study.variants if name in (study.baseline, *others)]
    pairs = [pair for pair in study.comparisons if {*pair} <= {*variants}]
    left_out = dict.fromkeys(("memory", "search", "quality", "projection", "link_check"))
    return study.model_copy(update={"variants": variants, "comparisons": pairs, **left_out})
