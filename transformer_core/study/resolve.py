"""Resolves variants of a study, alone or combined, to run specs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from schemas.base import kinds_of, merge
from schemas.config.run_spec import LanguageModel, RunSpec, Sections, Translation
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.errors import ConfigError, ConfigProblem, from_validation, nearest
from transformer_core.common.yaml_files import check_entries
from transformer_core.study.checks import violations
from transformer_core.study.variants import (
    VARIANTS_FILE,
    contradiction,
    leaves,
    lineage,
    place,
    unknown_variant,
    with_compositions,
)

_KINDS = kinds_of(RunSpec)


def check_study(data: Any, file: str) -> Study:
    study: Study = check_entries(data or {}, Study, file)
    return study


def resolve(
    study: Study, variant: str, variants: Mapping[str, Variant], study_file: str = "study"
) -> RunSpec:
    """The complete, checked run spec of ``variant`` in ``study``; ConfigError if it is invalid."""
    found = _resolved(study, variant, variants, study_file)
    if isinstance(found, RunSpec):
        return found
    raise ConfigError(problem for _, problem in found)


_Problems = list[tuple[str, ConfigProblem]]
"""Problems of a run spec, each with the field of the run spec, wherever a file sets it."""


def _resolved(
    study: Study, variant: str, variants: Mapping[str, Variant], study_file: str = "study"
) -> RunSpec | _Problems:
    data: dict[str, Any] = study.model_dump(mode="json", include=set(Sections.model_fields))
    line = lineage(variant, variants)
    for ancestor in line:
        data = merge(data, variants[ancestor].change, _KINDS)
    data["variant"] = variant
    changes = {ancestor: variants[ancestor].change for ancestor in reversed(line)}
    problems: _Problems = []
    try:
        spec = RunSpec.model_validate(data)
    except ValidationError as error:
        # The study is valid, so a change is wrong: the latest one that sets most of the path.
        for problem in from_validation(error, RunSpec, VARIANTS_FILE).problems:
            parts = problem.field.split(".")
            author = max(changes, key=lambda name: _depth(changes[name], parts))
            field = place(author, variants[author], f"change.{problem.field}")
            problems.append((problem.field, replace(problem, field=field)))
        return problems
    for field, value, message, remedy in violations(spec):
        parts = field.split(".")
        authors = [name for name in changes if _depth(changes[name], parts) == len(parts)]
        file, where = study_file, field
        if authors:
            author = authors[0]
            file, where = VARIANTS_FILE, place(author, variants[author], f"change.{field}")
        message = f"{message} (variant {variant})"
        problems.append((field, ConfigProblem(file, where, value, message, remedy)))
    return problems or spec


def spec_of(
    study: Study, name: str, variants: Mapping[str, Variant], study_file: str = "study"
) -> RunSpec:
    """The run spec of a variant. If its change does not apply to the study's task, that of the study
    itself, with the reason. ConfigError if the change is wrong for any task."""
    found = _resolved(study, name, variants, study_file)
    if isinstance(found, RunSpec):
        return found
    reason = _without_meaning(study, name, variants, found)
    if reason is None:
        raise ConfigError(problem for _, problem in found)
    sections = {field: getattr(study, field) for field in Sections.model_fields}
    return RunSpec(variant=name, no_meaning=reason, **sections)


_OF_TEXTS = "model.", "batching.rows.", "training.precision.", "training.loss."
"""Fields with settings that only a translation has."""


def _without_meaning(
    study: Study, name: str, variants: Mapping[str, Variant], problems: _Problems
) -> str | None:
    """Why a variant does not apply to a study's task or kind of model; None if the study itself is
    wrong, or the variant would be wrong for the usual model of either task too."""
    texts = isinstance(study.task, LanguageModel)
    if not isinstance(study.task, LanguageModel | Translation) or name == study.baseline:
        return None
    # Any other field is wrong in this study, whatever its task.
    if not all(field.startswith(_OF_TEXTS if texts else "model.") for field, _ in problems):
        return None
    usual = {"name": study.name, "variants": [name], "baseline": name, "machine": study.machine}
    others = [
        Study.model_validate(usual | {"task": {"kind": kind}})
        for kind in ("translation", "language_model")
    ]
    others = [other for other in others if other.model.kind != study.model.kind]
    valid = any(isinstance(_resolved(other, name, variants), RunSpec) for other in others)
    if not valid or not isinstance(_resolved(study, study.baseline, variants), RunSpec):
        return None
    lacks = set()
    for field, problem in problems:
        value, allowed = problem.value, problem.message.partition("input should be ")[2]
        kind = value.get("kind", value) if isinstance(value, dict) else value
        # A setting that another kind of model has under the same name.
        lacks.add(f"{field} = {value} (only {allowed})" if allowed else f"{field} = {kind}")
    return (
        f"its change does not apply to a {'language' if texts else 'translation'} model of kind "
        f"{study.model.kind}, which has no {', no '.join(sorted(lacks))}"
    )


def resolve_all(
    study: Study, variants: Mapping[str, Variant], study_file: str = "study"
) -> dict[str, RunSpec]:
    """The run specs of all variants of the study, by name; all problems in one ConfigError."""
    variants = with_compositions(variants, study.variants, study_file)
    problems: list[ConfigProblem] = []
    if study.baseline not in study.variants:
        message = "is not among the variants of the study"
        remedy = nearest(study.baseline, study.variants)
        problems.append(ConfigProblem(study_file, "baseline", study.baseline, message, remedy))
    specs: dict[str, RunSpec] = {}
    for position, name in enumerate(study.variants):
        field = f"variants[{position}]"
        if name in specs:
            problems.append(ConfigProblem(study_file, field, name, "is named twice", "remove one"))
        elif name not in variants:
            message, remedy = unknown_variant(name, variants)
            problems.append(ConfigProblem(study_file, field, name, message, remedy))
        else:
            try:
                specs[name] = spec_of(study, name, variants, study_file)
            except ConfigError as error:
                problems.extend(error.problems)
    if problems:
        # A mistake in a shared section shows in every variant but is reported once, unless the
        # variants need different values.
        unique: dict[tuple[str, ...], ConfigProblem] = {}
        for p in problems:
            unique.setdefault((p.file, p.field, repr(p.value), p.remedy), p)
        raise ConfigError(unique.values())
    return specs


def _depth(change: dict[str, Any], parts: list[str]) -> int:
    """The number of steps along a field's path that ``change`` contains."""
    node: Any = change
    for depth, part in enumerate(parts):
        if not isinstance(node, dict) or part not in node:
            return depth
        node = node[part]
    return len(parts)


def combine(
    study: Study, variants: Mapping[str, Variant], parts: Sequence[str], name: str
) -> RunSpec | None:
    """The baseline with the own changes of ``parts``, as a run spec called ``name``.

    A part contributes only its change to its own parent: ``ddp_bucket_view`` does not include
    ``ddp``. None if two parts set the same field differently, or the result is invalid.
    """
    if any(exclusions(variants, parts).values()):
        return None
    chain, parent = dict(variants), study.baseline
    for number, part in enumerate(parts):
        chain[f"{name}_{number}"] = variants[part].model_copy(update={"parent": parent})
        parent = f"{name}_{number}"
    nothing: dict[str, Any] = {"parent": parent, "change": {}}
    chain[name] = variants[study.baseline].model_copy(update=nothing)
    try:
        return resolve(study, name, chain)
    except ConfigError:
        return None


def exclusions(variants: Mapping[str, Variant], parts: Sequence[str]) -> dict[str, frozenset[str]]:
    """By part, the others that it excludes because they set one of its fields differently."""
    fields = {part: dict(leaves(variants[part].change)) for part in parts}
    return {
        part: frozenset(o for o in parts if contradiction(fields[part], fields[o]) is not None)
        for part in parts
    }
