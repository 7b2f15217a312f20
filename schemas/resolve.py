"""From a study and the variants file to run specs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from schemas.base import merge
from schemas.errors import ConfigError, ConfigProblem, from_validation, nearest
from schemas.rules import violations
from schemas.study import RunSpec, Study, Variant

VARIANTS_FILE = "config/variants.yaml"
_SHARED = frozenset(RunSpec.model_fields) & frozenset(Study.model_fields)


def read_yaml(path: str | Path) -> Any:
    """The contents of a YAML file; ConfigError if it is missing or is not YAML."""
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        problem = ConfigProblem(str(path), "(file)", None, str(error), "check the path")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        message = " ".join(str(error).split())
        problem = ConfigProblem(str(path), "(file)", None, message, "correct the YAML syntax")
    raise ConfigError([problem])


def check_study(data: Any, file: str) -> Study:
    """A study from the contents of ``file``."""
    try:
        return Study.model_validate(data or {})
    except ValidationError as error:
        raise from_validation(error, Study, file) from None


def read_variants(path: str | Path = VARIANTS_FILE) -> dict[str, Variant]:
    """All variants by name; parents are known and not circular."""
    file = str(path)
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise ConfigError(
            [ConfigProblem(file, "(top level)", data, "is not a mapping", "write name: {...}")]
        )
    try:
        variants = TypeAdapter(dict[str, Variant]).validate_python(data)
    except ValidationError as error:
        raise from_validation(error, Variant, file) from None
    for name in variants:
        _lineage(name, variants, file)
    return variants


def resolve(
    study: Study,
    variant: str,
    variants: Mapping[str, Variant],
    study_file: str = "study",
    variants_file: str = VARIANTS_FILE,
) -> RunSpec:
    """The complete, checked run spec of ``variant`` in ``study``; ConfigError if there is none."""
    data: dict[str, Any] = study.model_dump(mode="json", include=set(_SHARED))
    origin = study_file
    for ancestor in _lineage(variant, variants, variants_file):
        change = variants[ancestor].change
        if change:
            origin = variants_file
        data = merge(data, change)
    data["variant"] = variant
    prefix = f"{variant}.change" if origin == variants_file else ""
    try:
        spec = RunSpec.model_validate(data)
    except ValidationError as error:
        raise from_validation(error, RunSpec, origin, prefix) from None
    problems = [
        ConfigProblem(
            _origin_of(field, variant, variants, study_file, variants_file),
            field,
            value,
            f"{message} (variant {variant})",
            remedy,
        )
        for field, value, message, remedy in violations(spec)
    ]
    if problems:
        raise ConfigError(problems)
    return spec


def resolve_all(
    study: Study,
    variants: Mapping[str, Variant],
    study_file: str = "study",
    variants_file: str = VARIANTS_FILE,
) -> dict[str, RunSpec]:
    """The run specs of all variants of the study, by name; all problems in one ConfigError."""
    problems: list[ConfigProblem] = []
    if study.baseline not in study.variants:
        problems.append(
            ConfigProblem(
                study_file,
                "baseline",
                study.baseline,
                "is not among the variants of the study",
                nearest(study.baseline, study.variants),
            )
        )
    specs: dict[str, RunSpec] = {}
    for position, name in enumerate(study.variants):
        field = f"variants[{position}]"
        if name in specs:
            problems.append(ConfigProblem(study_file, field, name, "is named twice", "remove one"))
        elif name not in variants:
            message = f"is not defined in {variants_file}"
            remedy = nearest(name, variants)
            problems.append(ConfigProblem(study_file, field, name, message, remedy))
        else:
            try:
                specs[name] = resolve(study, name, variants, study_file, variants_file)
            except ConfigError as error:
                problems.extend(error.problems)
    if problems:
        # A mistake in a shared section shows in every variant: say it once.
        raise ConfigError({(p.file, p.field, repr(p.value)): p for p in problems[::-1]}.values())
    return specs


def _lineage(name: str, variants: Mapping[str, Variant], file: str) -> list[str]:
    """The variant and its ancestors, oldest first."""
    line: list[str] = []
    current: str | None = name
    child = name
    while current is not None:
        if current in line:
            circle = " -> ".join([*line, current])
            problem = ConfigProblem(
                file, f"{child}.parent", current, f"is circular: {circle}", "break the circle"
            )
            raise ConfigError([problem])
        if current not in variants:
            field = f"{child}.parent" if line else current
            problem = ConfigProblem(
                file, field, current, "is not a variant", nearest(current, variants)
            )
            raise ConfigError([problem])
        line.append(current)
        child, current = current, variants[current].parent
    return line[::-1]


def _origin_of(
    field: str,
    variant: str,
    variants: Mapping[str, Variant],
    study_file: str,
    variants_file: str,
) -> str:
    """The file that sets ``field`` for ``variant``: the variant's line if it touches it."""
    for ancestor in _lineage(variant, variants, variants_file):
        node: Any = variants[ancestor].change
        for part in field.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        if node is not None:
            return variants_file
    return study_file
