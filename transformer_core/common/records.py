"""Reads the records of other jobs; errors say what to do."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from schemas.base import Schema
from schemas.errors import ConfigError, from_validation
from transformer_core.common import digests
from transformer_core.common.endings import damaged, remake
from transformer_core.common.yaml_files import read_yaml

Record = TypeVar("Record", bound=Schema)


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Validates and serializes values of a type. Kept, since it takes tens of milliseconds to make."""
    return TypeAdapter(kind)


def read_record(path: str | Path, model: type[Record]) -> Record:
    """Reads a ``model`` from a JSON or YAML file; ConfigError if the file is missing, holds
    something else, or has changed since it was made (:mod:`transformer_core.common.digests`)."""
    return read_as(path, model)


def read_as(path: str | Path, kind: Any, extra: Literal["ignore"] | None = None) -> Any:
    """The same for any type annotation. ``extra`` says what to do with unknown fields; None refuses
    them."""
    path = Path(path)
    by_a_person = path.suffix in (".yaml", ".yml")
    try:
        if by_a_person:
            content = json.dumps(read_yaml(path)).encode()
        else:
            content = digests.regular(path).read_bytes()
            digests.check(path, content)
        return adapter(kind).validate_json(content.decode("utf-8"), extra=extra)
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, error) from None
    except ValidationError as error:
        found = from_validation(error, kind, str(path))
        if by_a_person:
            raise found from None
        raise ConfigError(
            replace(problem, remedy=f"{problem.remedy}, or {remake(path)}")
            for problem in found.problems
        ) from None
