"""Which variants are compared with which."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from schemas.config.families import Family, Member
from schemas.config.study import Study
from schemas.errors import ConfigError, ConfigProblem, nearest


def compared_pairs(
    study: Study, extra_pairs: Iterable[tuple[str, str]] = (), file: str = "study"
) -> list[tuple[str, str]]:
    """The pairs (variant, reference) that are timed, each once.

    Every variant with the baseline, then those that the study lists, then ``extra_pairs``. Raises
    ConfigError for a listed one that names a variant the study does not run, or the same twice.
    """
    problems = []
    for position, pair in enumerate(study.comparisons):
        field = f"comparisons[{position}]"
        for name in pair:
            if name not in study.variants:
                message, remedy = "is not a variant of the study", nearest(name, study.variants)
                problems.append(ConfigProblem(file, field, name, message, remedy))
        if pair[0] == pair[1]:
            message = "is compared with itself"
            remedy = "name two variants; results/self_test/report.json does this and more"
            problems.append(ConfigProblem(file, field, pair[0], message, remedy))
    if problems:
        raise ConfigError(problems)
    pairs = [(variant, study.baseline) for variant in study.variants if variant != study.baseline]
    return list(dict.fromkeys([*pairs, *study.comparisons, *extra_pairs]))


def members_in(family: Family, study: Study) -> list[Member]:
    """The members that ``study`` runs together with their references, smallest value first."""
    runs = set(study.variants)
    number = _number(study, family.field)
    found = [m for m in family.members if {m.variant, family.reference_of(m)} <= runs]
    if number is not None:
        found = [m for m in found if m.variant not in family.as_in_study or m.value == number]
    return sorted(found, key=lambda member: member.value)


def _number(study: Study, field: str) -> float | None:
    """What the study itself says in a dotted field; None where it has no such number."""
    found: object = study
    for name in field.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, int | float) else None


def family_pairs(families: Mapping[str, Family], study: Study) -> list[tuple[str, str]]:
    """The pairs (variant, reference) that the curves of ``study`` need, each once.

    A family of which the study runs fewer than two members has no curve.
    """
    pairs = [
        (member.variant, reference)
        for family in families.values()
        for members in [members_in(family, study)]
        if len(members) > 1
        for member in members
        if (reference := family.reference_of(member)) and reference != member.variant
    ]
    return list(dict.fromkeys(pairs))


def turn_groups(
    pairs: Sequence[tuple[str, str]], together: int, alone: Iterable[str] = ()
) -> dict[str, tuple[str, list[str]]]:
    """The jobs that time ``pairs`` of (variant, reference): name, reference, its variants.

    A job has as many variants as ``together`` leaves room for beside the reference; one of those
    that must be ``alone``, as reference or as variant, has a job for each pair.
    """
    groups: dict[str, tuple[str, list[str]]] = {}
    open_groups: dict[str, str] = {}
    count: dict[str, int] = defaultdict(int)
    single = set(alone)
    for variant, reference in pairs:
        lonely = not single.isdisjoint((variant, reference))
        name = open_groups.get(reference)
        if lonely or name is None or len(groups[name][1]) >= together - 1:
            count[reference] += 1
            name = f"{reference}/{count[reference]}"
            groups[name] = reference, []
            if not lonely:
                open_groups[reference] = name
        groups[name][1].append(variant)
    return groups
