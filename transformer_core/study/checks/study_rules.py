"""Rules for a study as a whole: what it names is there, and nothing is asked for twice."""

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from schemas.config.study import Study
from schemas.config.task import LanguageModel
from schemas.errors import ConfigProblem
from transformer_core.study.checks.imported_rules import of_imported_study


def contradictions(study: Study, file: str) -> Iterator[ConfigProblem]:
    """Everything that is wrong with a study whose sections are right."""
    yield from of_imported_study(study, file)
    for field, path in _named_files(study):
        message = _unusable(path)
        if message is not None:
            remedy = f"check the path (relative ones start at {Path.cwd()})"
            yield ConfigProblem(file, field, path, message, remedy)
    if study.quality is not None and isinstance(study.task, LanguageModel):
        yield ConfigProblem(
            file,
            "quality",
            study.quality.bleu,
            "asks for BLEU, and task.kind is language_model",
            "leave quality out",
        )
    lists: dict[str, Iterable[object]] = {"self_test.planted": study.self_test.planted}
    if study.link_check is not None:
        lists["link_check.bandwidths"] = study.link_check.bandwidths
    if study.memory is not None:
        lists["memory.largest_batch.variants"] = study.memory.largest_batch.variants
    for field, values in lists.items():
        seen = set()
        for position, value in enumerate(values):
            if value in seen:
                yield ConfigProblem(
                    file, f"{field}[{position}]", value, "is given twice", "give each value once"
                )
            seen.add(value)


def _named_files(study: Study) -> Iterator[tuple[str, str]]:
    """Fields and paths of single files that are read as they are, without a job that says more."""
    if study.tokenizer.kind != "bpe":
        yield "tokenizer.path", study.tokenizer.path
    for name, files in study.traces.items():
        for position, path in enumerate(files):
            yield f"traces.{name}[{position}]", path


def _unusable(path: str) -> str | None:
    """Why a file cannot be read; null where it can, as far as can be seen without reading it."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError) as error:
        return f"cannot be read: {(getattr(error, 'strerror', None) or str(error)).lower()}"
    return None if stat.S_ISREG(mode) else "is not a regular file"
