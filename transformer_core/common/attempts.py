"""What the next attempt could mend is tried again by the same command.

A job that ends so leaves a result all the same, with its reason, and the report is made. Beside the
result it counts the attempts that failed. The count is a parameter of the job's rule: where it has
grown since, Snakemake makes the result again.
"""

from pathlib import Path

from transformer_core.common.files import write_text

CHANGES_NO_RESULT = True  # it decides whether a result is made again


def failures(result: str | Path) -> int:
    """Attempts at ``result``, a file or folder, that ended for a reason that may be gone."""
    try:
        return int(_file(Path(result)).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def count_failure(result: str | Path) -> None:
    """Let the next call of the same command make ``result`` again."""
    write_text(_file(Path(result)), f"{failures(result) + 1}\n")


def _file(result: Path) -> Path:
    return result.with_name(f".{result.name}.failures")
