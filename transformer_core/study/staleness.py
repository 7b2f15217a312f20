"""Lists the results that a change of the sources makes stale.

    python -m transformer_core.study.staleness                         # all files, all rules
    python -m transformer_core.study.staleness --file transformer_core/training/loop.py
    python -m transformer_core.study.staleness --rule train

Every rule has a fingerprint of the sources that its programs depend on. Snakemake keeps it with the
results and remakes them when it changes.
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import nearest
from transformer_core.common.endings import program
from transformer_core.common.sources import Sources
from transformer_core.study.kinds import JOBS

_JOB = "transformer_core.run.job"


def _modules(folder: str) -> tuple[str, ...]:
    """Modules of a folder of the package that programs look up by name."""
    root = Path(__file__).parents[2]
    files = sorted(root.glob(f"transformer_core/{folder}/[a-z]*.py"))
    return tuple(".".join(path.relative_to(root).with_suffix("").parts) for path in files)


RULES = (
    *("read_corpus", "tokenizer", "shards", "shards_part", "gather_shards", "verify_data"),
    *("export_parquet", "hardware", "roofline", "collectives", "utilisation", "predict_memory"),
    *("memory", "largest_batch", "train", "train_again", "evaluate", "combine", "short_run"),
    *("audit", "certificates", "certify", "profile", "breakdown", "breakdown_of_traces"),
    *("perfetto", "turns", "refine", "compare", "self_test_sessions", "self_test", "families"),
    *("claims", "search", "quality", "tune", "tune_page", "link_trial", "link_error"),
    *("compute_times", "projection", "page", "gpu_tests", "device_facts", "attention_truth"),
    *("gpu_checks", "gpu_check_page", "gpu_check_so_far", "against", "compare_page"),
)
"""Rules that run programs of this project, in the order of a study."""
KINDS = {
    "train": "timed_run",
    "train_again": "timed_run",
    "evaluate": "evaluation",
    "self_test_sessions": "self_test",
    "self_test": "self_test_report",
    "link_trial": "turns",
    "shards_part": "shards",
    "page": "report",
    "gpu_check_so_far": "gpu_check_page",
}
"""The kind of order that a rule writes, if it is not the rule's name."""
_OTHERS = dict.fromkeys(("breakdown_of_traces", "perfetto"), ("transformer_core.trace",))
"""The programs of rules that write no order."""
_BESIDE: dict[str, tuple[str, ...]] = {
    "audit": ("transformer_core.audit.side", "transformer_core.training.__main__"),
    "page": _modules("report/sections"),
    "tune": (
        *("transformer_core.tune.side", "transformer_core.tune.factory"),
        *_modules("tune/techniques"),
    ),
}
"""Modules that a job looks up by name."""
PROGRAMS = {
    rule: _OTHERS.get(rule)
    or (_JOB, JOBS[KINDS.get(rule, rule)].rpartition(".")[0], *_BESIDE.get(rule, ()))
    for rule in RULES
}
"""Modules by rule: the program that runs orders, and the module of the order's kind."""


def fingerprints(sources: Sources | None = None) -> dict[str, str]:
    sources = sources or Sources()
    found = {rule: sources.fingerprint(programs) for rule, programs in PROGRAMS.items()}
    sources.keep()
    return found


def files_of_rules(sources: Sources) -> dict[str, list[str]]:
    """The files that each rule depends on, relative to the project's folder."""
    return {rule: sources.files(programs) for rule, programs in PROGRAMS.items()}


def rules_of_files(sources: Sources) -> dict[str, list[str]]:
    """The rules that depend on each file, including files that no rule depends on."""
    files = files_of_rules(sources)
    return {name: [rule for rule in PROGRAMS if name in files[rule]] for name in sources.all_files}


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.study.staleness",
        description="List the rules whose results a change of each file makes stale.",
    )
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--file", type=Path, help="only this file")
    asked.add_argument("--rule", help="only this rule, with the files that it depends on")
    options = parser.parse_args(arguments)
    sources = Sources()
    option, only = "--rule", options.rule
    rows = rules_of_files(sources) if only is None else files_of_rules(sources)
    if options.file is not None:
        option, only = "--file", os.path.relpath(options.file.resolve(), sources.root)
    if only is not None and only not in rows:
        remedy = "without --file, all sources are listed"
        parser.error(
            f"{option} {only}: is not known; {remedy if options.file else nearest(only, rows)}"
        )
    sources.keep()
    wrapper = textwrap.TextWrapper(100, "    ", "    ", break_on_hyphens=False)
    for name in rows if only is None else [only]:
        print(name)
        print(wrapper.fill(", ".join(rows[name]) or "(nothing)"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
