"""The results that are made again after a change of the sources.

    python -m transformer_core.study.staleness                         # all files, all rules
    python -m transformer_core.study.staleness --file transformer_core/training/loop.py
    python -m transformer_core.study.staleness --rule train

Every rule has a fingerprint of what its programs depend on among the sources: Snakemake keeps it
with the results, and makes them again when it changes.
"""

import argparse
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from schemas.errors import nearest
from transformer_core.common.endings import program
from transformer_core.common.sources import Sources

_JOB = "transformer_core.run.job"


def _modules(folder: str) -> tuple[str, ...]:
    """Modules of a folder of the package, which programs find by looking into it."""
    root = Path(__file__).parents[2]
    files = sorted(root.glob(f"transformer_core/{folder}/[a-z]*.py"))
    return tuple(".".join(path.relative_to(root).with_suffix("").parts) for path in files)


PROGRAMS = MappingProxyType(
    {
        "read_corpus": (_JOB, "transformer_core.data.corpus.job"),
        "tokenizer": (_JOB, "transformer_core.data.tokenizing.job"),
        "shards": (_JOB, "transformer_core.data.sharding.job"),
        "shards_part": (_JOB, "transformer_core.data.sharding.job"),
        "gather_shards": (_JOB, "transformer_core.data.sharding.finished"),
        "verify_data": (_JOB, "transformer_core.data.sharding.finished"),
        "export_parquet": (_JOB, "transformer_core.data.sharding.finished"),
        "hardware": (_JOB, "transformer_core.machine.hardware"),
        "roofline": (_JOB, "transformer_core.measure.roofline"),
        "collectives": (_JOB, "transformer_core.measure.collectives"),
        "utilisation": (_JOB, "transformer_core.decide.utilisation"),
        "predict_memory": (_JOB, "transformer_core.measure.predicted_memory"),
        "memory": (_JOB, "transformer_core.measure.memory_anatomy"),
        "largest_batch": (_JOB, "transformer_core.measure.largest_batch"),
        "train": (_JOB, "transformer_core.measure.timed_run"),
        "train_again": (_JOB, "transformer_core.measure.timed_run"),
        "evaluate": (_JOB, "transformer_core.measure.evaluation"),
        "combine": (_JOB, "transformer_core.decide.combine"),
        "short_run": (_JOB, "transformer_core.certify.short_run"),
        "audit": (
            *(_JOB, "transformer_core.audit.job", "transformer_core.audit.side"),
            "transformer_core.training.__main__",
        ),
        "certificates": (_JOB, "transformer_core.certify.certificate_table"),
        "certify": (_JOB, "transformer_core.certify.judge"),
        "profile": (_JOB, "transformer_core.observe.profile_job"),
        "breakdown": (_JOB, "transformer_core.observe.breakdown"),
        "breakdown_of_traces": ("transformer_core.trace",),
        "perfetto": ("transformer_core.trace",),
        "turns": (_JOB, "transformer_core.measure.turns"),
        "refine": (_JOB, "transformer_core.decide.refine"),
        "compare": (_JOB, "transformer_core.decide.compare"),
        "self_test_sessions": (_JOB, "transformer_core.measure.self_test"),
        "self_test": (_JOB, "transformer_core.decide.self_test_report"),
        "families": (_JOB, "transformer_core.decide.family_curves"),
        "claims": (_JOB, "transformer_core.decide.claims"),
        "search": (_JOB, "transformer_core.decide.search"),
        "quality": (_JOB, "transformer_core.measure.quality"),
        "tune": (
            *(_JOB, "transformer_core.tune.job", "transformer_core.tune.side"),
            "transformer_core.tune.factory",
            *_modules("tune/techniques"),
        ),
        "tune_page": (_JOB, "transformer_core.report.tune_page", *_modules("tune/techniques")),
        "link_trial": (_JOB, "transformer_core.measure.turns"),
        "link_error": (_JOB, "transformer_core.decide.link_error"),
        "compute_times": (_JOB, "transformer_core.measure.compute"),
        "projection": (_JOB, "transformer_core.decide.projection"),
        "page": (_JOB, "transformer_core.report.page", *_modules("report/sections")),
        "gpu_tests": (_JOB, "transformer_core.measure.gpu_check.device_tests"),
        "device_facts": (_JOB, "transformer_core.measure.gpu_check.device_facts"),
        "attention_truth": (_JOB, "transformer_core.measure.gpu_check.attention_truth"),
        "gpu_checks": (_JOB, "transformer_core.decide.gpu_check"),
        "gpu_check_page": (_JOB, "transformer_core.report.gpu_check_page"),
        "gpu_check_so_far": (_JOB, "transformer_core.report.gpu_check_page"),
        "against": (_JOB, "transformer_core.decide.against"),
        "compare_page": (_JOB, "transformer_core.report.compare_page"),
    }
)
"""Modules by rule, as the commands of the rules name them; after the program of orders, the module of
the order's kind."""


def fingerprints(sources: Sources | None = None) -> dict[str, str]:
    sources = sources or Sources()
    found = {rule: sources.fingerprint(programs) for rule, programs in PROGRAMS.items()}
    sources.keep()
    return found


def files_of_rules(sources: Sources) -> dict[str, list[str]]:
    """The files that each rule depends on, relative to the project's folder, by its name."""
    return {rule: sources.files(programs) for rule, programs in PROGRAMS.items()}


def rules_of_files(sources: Sources) -> dict[str, list[str]]:
    """The rules that depend on each file, by its name; files that no rule depends on, too."""
    files = files_of_rules(sources)
    return {name: [rule for rule in PROGRAMS if name in files[rule]] for name in sources.all_files}


def _table(rows: Mapping[str, Sequence[str]]) -> str:
    """Rows of a name and words, the words in lines of bounded length."""
    wrapper = textwrap.TextWrapper(100, "    ", "    ", break_on_hyphens=False)
    return "\n".join(
        f"{name}\n{wrapper.fill(', '.join(words) or '(nothing)')}" for name, words in rows.items()
    )


def _chosen(
    option: str, name: str, rows: Mapping[str, Sequence[str]], parser: argparse.ArgumentParser
) -> dict[str, Sequence[str]]:
    if name not in rows:
        parser.error(f"{option} {name}: is not known; {nearest(name, rows)}")
    return {name: rows[name]}


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.study.staleness",
        description="List the rules that run again after a change of a file: file by file, the rules "
        "whose results it can change.",
    )
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--file", type=Path, help="only this file")
    asked.add_argument("--rule", help="only this rule, with the files that it depends on")
    options = parser.parse_args(arguments)
    sources = Sources()
    rows: Mapping[str, Sequence[str]]
    if options.rule is not None:
        rows = _chosen("--rule", options.rule, files_of_rules(sources), parser)
    else:
        rows = rules_of_files(sources)
        if options.file is not None:
            file = options.file.resolve()
            below = file.is_relative_to(sources.root)
            name = (file.relative_to(sources.root) if below else options.file).as_posix()
            rows = _chosen("--file", name, rows, parser)
    sources.keep()
    print(_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
