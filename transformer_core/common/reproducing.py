"""The commands that make a result again."""

import os
from pathlib import Path

CHANGES_NO_RESULT = True  # it says where a number comes from

STUDY_OPTIONS = "STUDY_OPTIONS"
"""Environment of a job: the options of ``snakemake`` that say which study it works for."""


def reproducing_command(target: str | Path) -> str:
    """The command that makes ``target`` again."""
    return f"snakemake --cores all {target} {os.environ.get(STUDY_OPTIONS, '')}".strip()


def remake(target: str | Path, damaged: str | Path | None = None) -> str:
    """The remedy for a damaged file of the workflow, and for the ``target`` that needs it."""
    return f"make it again: {reproducing_command(f'{target} --forcerun {damaged or target}')}"
