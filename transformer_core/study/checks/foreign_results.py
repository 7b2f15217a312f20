"""Results that were brought here without what Snakemake knows of them.

Snakemake makes a file again when its parameters have changed, and keeps those in
``.snakemake/metadata``. Where results were copied without that folder, or it was removed, it takes
them as they are: the results of one study would pass for those of another.
"""

import ast
import base64
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem

CHANGES_NO_RESULT = True  # it decides whether work may begin


def check_foreign(planned: Mapping[str, str], study: str, snakemake: Path) -> None:
    """Refuse files that say what they are of, are of something else than what is ``planned`` (the
    text of each), and are unknown in the folder ``snakemake``, so that they would stay.

    ``study`` is the name of the study's file. Raises ConfigError.
    """
    for place, text in planned.items():
        path = Path(place)
        try:
            found = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            continue  # it is made, or its reader says what is wrong
        if found != text and not _is_known(place, found, snakemake):
            raise ConfigError([_problem(place, found, text, study)])


def _is_known(place: str, found: str, snakemake: Path) -> bool:
    """Whether Snakemake knows this very file, or that it was not done with it."""
    name = base64.b64encode(place.encode()).decode()
    if (snakemake / "incomplete" / name).exists():
        return True
    try:
        record = json.loads((snakemake / "metadata" / name).read_text(encoding="utf-8"))
        return found in map(ast.literal_eval, record["params"])
    except (OSError, ValueError, SyntaxError, TypeError, KeyError):
        return False


def _problem(place: str, found: str, text: str, study: str) -> ConfigProblem:
    field, there, beside = WHOLE_FILE, None, ""
    with contextlib.suppress(ValueError):
        field, there, here = _difference(json.loads(found), json.loads(text))
        beside = f", where this is {here!r}"
    return ConfigProblem(
        place,
        field,
        there,
        f"the results are of another study than {study}{beside}; and what Snakemake knew of them "
        "is not in .snakemake/metadata, so that it would keep them all",
        "if they were copied here, copy .snakemake too; keep them with `mv results "
        "results-before`; or make all of them again: the same command with --forceall",
    )


def _difference(one: Any, other: Any, path: str = "") -> tuple[str, Any, Any]:
    """The first field in which two records differ, and its value in each."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in [*one, *(name for name in other if name not in one)]:
            if one.get(name) != other.get(name):
                below = f"{path}.{name}" if path else str(name)
                return _difference(one.get(name), other.get(name), below)
    return path or "(top level)", one, other
