"""Reading the records of other jobs, with errors that say what to do."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from schemas.base import Schema
from schemas.errors import ConfigError, ConfigProblem, from_validation
from transformer_core.common import digests
from transformer_core.common.endings import damaged, remake
from transformer_core.common.yaml_files import read_yaml

Record = TypeVar("Record", bound=Schema)


def read_record(path: str | Path, model: type[Record]) -> Record:
    """The ``model`` in a JSON file, or in a YAML file of that name; ConfigError if the file is
    missing, holds something else, or has changed since it was made
    (:mod:`transformer_core.common.digests`)."""
    path = Path(path)
    text = json.dumps(read_yaml(path)) if path.suffix == ".yaml" else _read_text(path)
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        found = from_validation(error, model, str(path))
        if path.suffix == ".yaml":  # written by a person
            raise found from None
        raise ConfigError(
            replace(problem, remedy=f"{problem.remedy}, or {remake(path)}")
            for problem in found.problems
        ) from None


def read_as(path: str | Path, kind: Any) -> Any:
    """Reads a JSON file and checks it against its digest and any type annotation; ConfigError if it
    fails."""
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
                remake(path),
            )
            for item in error.errors(include_url=False)
        ) from None


def _read_text(path: str | Path) -> str:
    path = Path(path)
    try:
        content = digests.regular(path).read_bytes()
        digests.check(path, content)
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, error) from None
