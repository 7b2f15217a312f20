"""The targets that a study has; a mistyped one is refused with the nearest names."""

from collections.abc import Iterable
from pathlib import Path

from schemas.config.data import SPLITS
from schemas.config.study import Study
from schemas.errors import ConfigError, ConfigProblem, nearest
from transformer_core.study.compared_pairs import compared_pairs, turn_groups


def known_targets(
    study: Study,
    extra_pairs: Iterable[tuple[str, str]] = (),
    figures: Iterable[str] = (),
    tables: Iterable[str] = (),
    alone: Iterable[str] = (),
) -> list[str]:
    """Every target that a user may ask for by name; see :func:`compared_pairs`.

    ``figures`` and ``tables`` are the names of those of the report; comparisons of variants that
    must be ``alone`` share no turns with others.
    """
    data = f"results/data/{study.corpus.name}"
    targets = ["results/report.html", "results/report.md", "results/summary.json"]
    targets += ["results/machine/hardware.json", "results/comparisons.json"]
    targets += ["results/families.json", "results/claims.json", "results/certificates.md"]
    targets += [f"{data}/tokenizer.json", f"{data}/verify.json"]
    targets += ["results/refinement.json"] * (study.time is not None)
    targets += ["results/quality.json"] * (study.quality is not None)
    targets += ["results/links/error.json"] * (study.link_check is not None)
    if study.projection:
        targets += ["results/projection/compute.json", "results/projection/projection.json"]
    if study.memory:
        targets += ["results/memory/predicted.json"]
        searched = study.memory.largest_batch.variants
        targets += [f"results/memory/largest_batch/{variant}.json" for variant in searched]
    if study.memory and study.memory.anatomy:
        targets += [f"results/memory/{variant}.json" for variant in study.variants]
    targets += ["results/search.json", "results/recommended.yaml", "results/compare.html"]
    for split in SPLITS:
        targets += [f"{data}/pairs/{split}.json", f"{data}/shards/{split}/manifest.json"]
        targets += [f"{data}/parquet/{split}.parquet"]
    targets += ["results/self_test/report.json"]
    groups = turn_groups(compared_pairs(study, extra_pairs), study.comparison.together, alone)
    targets += [f"results/turns/{group}" for group in groups]
    for variant in study.variants:
        folder = f"results/runs/{variant}"
        targets += [f"{folder}/{name}.json" for name in ("spec", "metrics", "evaluation")]
        targets += [f"results/equivalence/{variant}.json"]
        targets += [f"results/profiles/{variant}/capture.json"]
        targets += [
            f"{folder}/repeat-{repeat}/metrics.json" for repeat in range(1, study.repeats + 1)
        ]
    targets += ["results/machine/roofline.json", "results/machine/collectives.parquet"]
    targets += ["results/utilisation.json"]
    for name in (*study.variants, *study.traces):
        folder = f"results/profiles/{name}"
        files = ("breakdown.json", "events.parquet", "perfetto.json.gz")
        targets += [f"{folder}/{file}" for file in files]
    targets += [f"results/tables/{name}.csv" for name in tables]
    return targets + [f"results/figures/{name}.svg" for name in figures]


_ALWAYS = ("results/turns/", "results/memory/")
_CHECKED = tuple(f"results/{name}/" for name in ("runs", "data", "profiles", "turns", "memory"))


def check_targets(asked: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a target in a folder of runs, data, profiles, turns or memory that the study
    lacks.

    ``asked`` may hold other words of a command line: they are left to Snakemake. Raises
    ConfigError with the nearest targets.
    """
    known = set(known)
    folders = {str(Path(target).parent) for target in known}
    problems = [
        ConfigProblem("command line", "target", target, "is not known", nearest(target, known))
        for target in asked
        if target.startswith(_CHECKED)
        and target not in known
        and (str(Path(target).parent) not in folders or target.startswith(_ALWAYS))
    ]
    if problems:
        raise ConfigError(problems)
