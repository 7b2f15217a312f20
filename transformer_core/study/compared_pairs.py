"""The pairs of variants that are compared, and the targets of a study: a mistyped one is refused with
the nearest names."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

from schemas.config.data import SPLITS
from schemas.config.study import Study
from schemas.config.variants import Family, Member
from schemas.errors import ConfigError, ConfigProblem, nearest
from schemas.results.comparisons import Pair


def compared_pairs(
    study: Study, extra_pairs: Iterable[tuple[str, str]] = (), file: str = "study"
) -> list[Pair]:
    """The pairs to time, each once: every variant with the baseline, then those that the study lists,
    then ``extra_pairs``. ConfigError if a listed one names an unknown variant, or one twice."""
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
    pairs = [
        Pair(variant, study.baseline) for variant in study.variants if variant != study.baseline
    ]
    return list(dict.fromkeys([*pairs, *starmap(Pair, (*study.comparisons, *extra_pairs))]))


def members_in(family: Family, study: Study) -> list[Member]:
    """The members that ``study`` runs, along with their references, smallest value first."""
    runs = set(study.variants)
    found = [m for m in family.members if {m.variant, family.reference_of(m)} <= runs]
    number: object = study  # in the family's dotted field
    for name in family.field.split("."):
        number = getattr(number, name, None)
    if isinstance(number, int | float):
        found = [m for m in found if m.variant not in family.as_in_study or m.value == number]
    return sorted(found, key=lambda member: member.value)


def family_pairs(families: Mapping[str, Family], study: Study) -> list[Pair]:
    """The pairs that the curves of ``study`` need, each once. A curve needs at least two members."""
    pairs = [
        Pair(member.variant, reference)
        for family in families.values()
        for members in [members_in(family, study)]
        if len(members) > 1
        for member in members
        if (reference := family.reference_of(member)) and reference != member.variant
    ]
    return list(dict.fromkeys(pairs))


@dataclass(frozen=True)
class TurnGroup:
    """Sides that take turns in one job, and the comparisons that use their turns."""

    sides: tuple[str, ...]
    """Variants; first the reference of most comparisons, whose turn is in the middle."""
    pairs: tuple[Pair, ...]

    def records(self) -> list[str]:
        return [str(pair) for pair in self.pairs]


def turn_groups(
    asked: Sequence[tuple[str, str]], together: int, alone: Iterable[str] = ()
) -> dict[str, TurnGroup]:
    """The jobs that time the pairs ``asked`` for, by name: a reference and its first variant. The order of
    pairs within a job changes nothing, so that it never makes turns stale.

    A job has a reference and up to ``together`` - 1 of its variants. Variants that are also compared
    with each other share a job if they fit into one, so that the same turns serve both comparisons.
    A pair with a variant in ``alone`` gets its own job.
    """
    pairs = list(starmap(Pair, asked))
    single = set(alone)
    groups = [
        TurnGroup((pair.reference, pair.variant), (pair,)) for pair in pairs if single & {*pair}
    ]
    left = [pair for pair in pairs if not single & {*pair}]
    variants = defaultdict(list)
    for variant, reference in left:
        variants[reference].append(variant)
    # The reference with most variants first: its groups can also serve comparisons among others.
    for reference in sorted(variants, key=lambda name: (-len(variants[name]), name)):
        waiting = [name for name in variants[reference] if (name, reference) in left]
        for crew in _crews(waiting, left, together - 1):
            sides = (reference, *crew)
            served = tuple(sorted(pair for pair in left if {*pair} <= {*sides}))
            groups.append(TurnGroup(sides, served))
            left = [pair for pair in left if pair not in served]
    groups.sort(key=lambda group: min(map(pairs.index, group.pairs)))
    return {"/".join(group.sides[:2]): group for group in groups}


def _crews(names: Sequence[str], pairs: Iterable[Pair], room: int) -> list[list[str]]:
    """``names`` in groups of at most ``room``; names linked by ``pairs`` share a group if they fit."""
    linked = {name: [name] for name in names}
    for pair in pairs:
        one, other = (linked.get(name) for name in pair)
        if one and other and one is not other and len(one) + len(other) <= room:
            one += other
            linked |= dict.fromkeys(other, one)
    blocks = {id(block): block for block in linked.values()}.values()
    crews: list[list[str]] = []
    for block in sorted(blocks, key=lambda block: -len(block)):
        crew = next((crew for crew in crews if len(crew) + len(block) <= room), None)
        if crew is None:
            crews.append(crew := [])
        crew += block
    return [sorted(crew) for crew in crews]


def known_targets(
    study: Study,
    extra_pairs: Iterable[tuple[str, str]] = (),
    figures: Iterable[str] = (),
    tables: Iterable[str] = (),
    alone: Iterable[str] = (),
) -> list[str]:
    """Every target that a user may ask for by name; for ``extra_pairs`` and ``alone`` see
    :func:`compared_pairs` and :func:`turn_groups`."""
    data, memory = f"results/data/{study.corpus.name}", study.memory
    asked = {
        "refinement": study.time,
        "quality": study.quality,
        "links/error": study.link_check,
        "projection/compute": study.projection,
        "projection/projection": study.projection,
        "memory/predicted": memory,
    }
    names = [name for name, setting in asked.items() if setting is not None]
    names += ["study", "variants", "against", "summary", "comparisons", "families", "claims"]
    names += ["search", "utilisation", "audit"]
    names += ["machine/hardware", "machine/roofline", "self_test/report"]
    if memory:
        names += [f"memory/largest_batch/{variant}" for variant in memory.largest_batch.variants]
        names += [f"memory/{variant}" for variant in study.variants if memory.anatomy]
    repeats = [f"repeat-{repeat}/metrics" for repeat in range(1, study.repeats + 1)]
    for variant in study.variants:
        names += [f"runs/{variant}/{name}" for name in ("spec", "metrics", "evaluation", *repeats)]
        names += [f"equivalence/{variant}", f"profiles/{variant}/capture"]
    others = ["report.html", "report.md", "certificates.md", "recommended.yaml", "compare.html"]
    others += ["machine/collectives.parquet", *["refined"] * (study.time is not None)]
    targets = [f"results/{name}" for name in (*(f"{name}.json" for name in names), *others)]
    targets += [f"{data}/{name}.json" for name in ("tokenizer", "tokenizer.report", "verify")]
    for split in SPLITS:
        targets += [f"{data}/pairs/{split}.json", f"{data}/shards/{split}/manifest.json"]
        targets += [f"{data}/parquet/{split}.parquet"]
    groups = turn_groups(compared_pairs(study, extra_pairs), study.comparison.together, alone)
    targets += [f"results/turns/{group}" for group in groups]
    for name in (*study.variants, *study.traces):
        files = ("breakdown.json", "events.parquet", "perfetto.json.gz")
        targets += [f"results/profiles/{name}/{file}" for file in files]
    targets += [f"results/tables/{name}.csv" for name in tables]
    return targets + [f"results/figures/{name}.svg" for name in figures]


_LARGEST_BATCH = "results/memory/largest_batch/"
_LISTED = tuple(f"results/{name}/" for name in ("turns", "memory", "figures", "tables"))
"""Folders of which every target is known; of results and results/equivalence, every one of their own files."""
_SOME_LISTED = tuple(f"results/{name}/" for name in ("runs", "data", "profiles"))
_OTHER_FILES = ("--report", "--archive", "--cleanup-metadata")
"""Options that take files which the study need not have."""


def check_targets(asked: Iterable[str], known: Iterable[str]) -> None:
    """ConfigError, with the nearest names, for a target in results that the study does not have, as far
    as all are known. Other words in ``asked`` are left to Snakemake."""
    asked, known = [*asked], {*known}
    folders = {str(Path(target).parent) for target in known}

    def mistyped(target: str) -> bool:
        folder = str(Path(target).parent)
        listed = folder in ("results", "results/equivalence") or target.startswith(_LISTED)
        return listed or (target.startswith(_SOME_LISTED) and folder not in folders)

    problems = [
        ConfigProblem("command line", "target", target, "is not known", _remedy(target, known))
        for target in asked
        if target not in known and mistyped(target)
    ]
    if problems and not any(word.startswith(_OTHER_FILES) for word in asked):
        raise ConfigError(problems)


def _remedy(target: str, known: Iterable[str]) -> str:
    near = nearest(target, known)
    if not target.startswith(_LARGEST_BATCH):
        return near
    return f"list {Path(target).stem} in memory.largest_batch.variants of the study, or {near}"
