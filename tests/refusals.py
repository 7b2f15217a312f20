"""The problems that refused configuration reports."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from schemas.errors import ConfigError, ConfigProblem, from_validation


def problems_of(check: Callable[..., object], *given: Any, **named: Any) -> list[ConfigProblem]:
    """The problems that ``check`` reports for these arguments."""
    with pytest.raises(ConfigError) as caught:
        check(*given, **named)
    return list(caught.value.problems)


def problem_of(check: Callable[..., object], *given: Any, **named: Any) -> ConfigProblem:
    """The only problem that ``check`` reports for these arguments."""
    (problem,) = problems_of(check, *given, **named)
    return problem


def problem_in(schema: type[BaseModel], content: object) -> ConfigProblem:
    """The only problem that the schema alone reports for a file with this content."""
    with pytest.raises(ValidationError) as caught:
        schema.model_validate(content)
    (problem,) = from_validation(caught.value, schema, "file.yaml").problems
    return problem
