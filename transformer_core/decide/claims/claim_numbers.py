"""Numbers that claims take from the results of any job."""

import json
from math import isfinite
from pathlib import Path
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import ValidationError

from schemas.config.claims import Number
from schemas.results import Interval
from transformer_core.decide.statistics.interval_arithmetic import exact, range_of, widened


class Unmeasured(LookupError):
    """A number that is not in the results; the message says why."""


def read_number(number: Number, folder: Path) -> Interval:
    """The number in the results below ``folder``; Unmeasured if there is none.

    A single number is exact, a list of numbers gives their median and range, and an interval is
    taken as it is; each with the uncertainty that the claim states.
    """
    content = _read(number.target, folder)
    try:
        value = jmespath.search(number.value, content)
    except JMESPathError as error:
        # A function that meets a null or another type: what it works on was not measured.
        message = " ".join(str(error).split())
        raise Unmeasured(f"{number.target} has no number at {number.value}: {message}") from None
    found = _as_interval(value)
    if found is None:
        raise Unmeasured(f"{number.target} has no number at {number.value}")
    return widened(found, number.uncertainty)


def _read(target: str, folder: Path) -> Any:
    path = folder / Path(target).relative_to("results")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Unmeasured(f"{target} is not there: no job of this study makes it") from None
    except (OSError, ValueError) as error:
        raise Unmeasured(f"{target} cannot be read: {error}") from None
    if isinstance(content, dict) and content.get("status", "ok") != "ok":
        reason = content.get("reason") or "no reason was given"
        raise Unmeasured(f"{target} ended {content['status']}: {reason}")
    return content


def _as_interval(value: Any) -> Interval | None:
    if isinstance(value, dict):
        try:
            return Interval.model_validate(value)
        except ValidationError:
            return None
    values = value if isinstance(value, list) else [value]
    if not values or not all(_is_number(item) for item in values):
        return None
    return range_of(values) if len(values) > 1 else exact(values[0])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
