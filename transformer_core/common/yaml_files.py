"""Reading YAML files, with errors that say where they are wrong."""

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from schemas.errors import ConfigError, ConfigProblem, from_validation
from transformer_core.common.plain_yaml import parse, read_text


def read_yaml(path: str | Path) -> Any:
    """The contents of a YAML or JSON file; ConfigError if it is missing, is neither, or is beyond
    the limits of :mod:`transformer_core.common.plain_yaml`."""
    return parse(read_text(path), path)


def read_mapping(path: str | Path) -> dict[Any, Any]:
    """The names and entries of a YAML file; ConfigError if it holds no mapping."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        message, remedy = "is not a mapping", "write name: {...}"
        raise ConfigError([ConfigProblem(str(path), "(top level)", data, message, remedy)])
    return data


def check_entries(data: dict[Any, Any], entries: Any, file: str) -> Any:
    """The ``entries``, a mapping of names to schemas, that ``data`` holds; else ConfigError."""
    try:
        return TypeAdapter(entries).validate_python(data)
    except ValidationError as error:
        raise from_validation(error, entries, file) from None
