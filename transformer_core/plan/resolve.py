"""From a study and the variants file to run specs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from schemas.base import kinds_of, merge
from schemas.equivalence import REFERENCE, Bitwise
from schemas.errors import ConfigError, ConfigProblem, from_validation, nearest
from schemas.rules import violations
from schemas.study import RunSpec, Study, Variant, Variants

VARIANTS_FILE = "config/variants.yaml"
_SHARED = frozenset(RunSpec.model_fields) & frozenset(Study.model_fields)
_KINDS = kinds_of(RunSpec)


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML that refuses a key given twice, of which PyYAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of ``node``; ConstructorError at the line of a repeated key."""
        seen = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value} is given twice", key.start_mark
                )
            seen.add(key.value if isinstance(key.value, str) else id(key))
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path) -> Any:
    """The contents of a YAML file; ConfigError if it is missing or is not YAML."""
    try:
        with Path(path).open(encoding="utf-8") as stream:
            return yaml.load(stream, _UniqueKeyLoader)
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


def read_entries(path: str | Path, entries: Any) -> Any:
    """The ``entries``, a mapping of names to schemas, that a YAML file holds; else ConfigError."""
    file = str(path)
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise ConfigError(
            [ConfigProblem(file, "(top level)", data, "is not a mapping", "write name: {...}")]
        )
    try:
        return TypeAdapter(entries).validate_python(data)
    except ValidationError as error:
        raise from_validation(error, entries, file) from None


def read_variants(path: str | Path = VARIANTS_FILE) -> dict[str, Variant]:
    """All variants by name; the variants they name are known, and parents not circular."""
    file = str(path)
    variants: dict[str, Variant] = read_entries(path, Variants)
    problems = []
    for name, variant in variants.items():
        lineage(name, variants, file)
        if name == REFERENCE:
            message, remedy = "is the name of the run that certificates compare with", "rename it"
            problems.append(ConfigProblem(file, name, name, message, remedy))
        equivalence = variant.equivalence
        if isinstance(equivalence, Bitwise) and equivalence.against not in variants:
            field, other = f"{name}.equivalence.against", equivalence.against
            remedy = nearest(other, variants)
            problems.append(ConfigProblem(file, field, other, "is not a variant", remedy))
    if problems:
        raise ConfigError(problems)
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
    line = lineage(variant, variants, variants_file)
    for ancestor in line:
        data = merge(data, variants[ancestor].change, _KINDS)
    data["variant"] = variant
    changes = {ancestor: variants[ancestor].change for ancestor in reversed(line)}
    try:
        spec = RunSpec.model_validate(data)
    except ValidationError as error:
        # The study is valid, so a change is to blame: the youngest that says most of the field.
        problems = []
        for problem in from_validation(error, RunSpec, variants_file).problems:
            parts = problem.field.split(".")
            author = max(changes, key=lambda name: _depth(changes[name], parts))
            problems.append(replace(problem, field=f"{author}.change.{problem.field}"))
        raise ConfigError(problems) from None
    problems = []
    for field, value, message, remedy in violations(spec):
        parts = field.split(".")
        authors = [name for name in changes if _depth(changes[name], parts) == len(parts)]
        file, place = study_file, field
        if authors:
            file, place = variants_file, f"{authors[0]}.change.{field}"
        problems.append(ConfigProblem(file, place, value, f"{message} (variant {variant})", remedy))
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
        # A mistake in a shared section shows in every variant: say it once. Variants that need
        # different values of it are all heard.
        unique: dict[tuple[str, ...], ConfigProblem] = {}
        for p in problems:
            unique.setdefault((p.file, p.field, repr(p.value), p.remedy), p)
        raise ConfigError(unique.values())
    return specs


def lineage(name: str, variants: Mapping[str, Variant], file: str = VARIANTS_FILE) -> list[str]:
    """The variant and its ancestors, oldest first; ConfigError if one is missing or circular."""
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


def _depth(change: dict[str, Any], parts: list[str]) -> int:
    """How many steps of the path of a field ``change`` has."""
    node: Any = change
    for depth, part in enumerate(parts):
        if not isinstance(node, dict) or part not in node:
            return depth
        node = node[part]
    return len(parts)
