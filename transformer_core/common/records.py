"""Reading the records of other jobs, with errors that say what to do."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from schemas.base import Schema
from schemas.errors import ConfigError, ConfigProblem, from_validation

Record = TypeVar("Record", bound=Schema)


def read_record(path: str | Path, model: type[Record]) -> Record:
    """The ``model`` in a JSON file; ConfigError if the file is missing or holds something else."""
    text = _read_text(path)
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise from_validation(error, model, str(path)) from None


def read_as(path: str | Path, kind: Any) -> Any:
    """What a JSON file holds, checked against any type annotation; ConfigError if it is not."""
    text = _read_text(path)
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        raise ConfigError(
            ConfigProblem(
                str(path),
                ".".join(map(str, item["loc"])) or "(top level)",
                item["input"],
                item["msg"],
                "make the file again",
            )
            for item in error.errors(include_url=False)
        ) from None


def check_option(option: str, text: str, kind: Any) -> Any:
    """What the JSON text of a command line's ``option`` holds; ConfigError if it is not a kind."""
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        raise from_validation(error, kind, option) from None


def _read_text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = ConfigProblem(
            str(path), "(file)", None, str(error), f"make it again: snakemake --cores all {path}"
        )
        raise ConfigError([problem]) from None
