"""The problems for which configuration is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from schemas.errors import ConfigError, ConfigProblem, from_validation


def problems_of(check: Callable[..., object], *given: Any, **named: Any) -> list[ConfigProblem]:
    """Those with which ``check`` answers these arguments."""
    with pytest.raises(ConfigError) as caught:
        check(*given, **named)
    return list(caught.value.problems)


def problem_of(check: Callable[..., object], *given: Any, **named: Any) -> ConfigProblem:
    """The only one of them."""
    (problem,) = problems_of(check, *given, **named)
    return problem


def problem_in(schema: type[BaseModel], content: object) -> ConfigProblem:
    """The only problem of a file with this content, by its schema alone."""
    with pytest.raises(ValidationError) as caught:
        schema.model_validate(content)
    (problem,) = from_validation(caught.value, schema, "file.yaml").problems
    return problem
