"""Every number that a user or a job writes has bounds, and what lies beyond them is refused."""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import schemas
from schemas.base import Schema
from schemas.results import Repeat, Shard, Window
from tests.refusals import problem_of
from transformer_core.common.records import read_record

ANYTHING = {
    "Answer.settings": "fields of a study, each of which was checked as such",
    "Variant.change": "fields of a study, which are checked where they are laid over one",
    "Composition.change": "the same",
    "Sweep.change": "the same",
    "Repeat.communication": "a strategy's own words on its traffic, for the page and for people",
    "Repeat.numerics": "a precision's own words, for the page and for people",
}
"""Fields that may hold anything, with numbers in it, and why."""


def models() -> list[type[BaseModel]]:
    """All models of the package schemas."""
    for module in pkgutil.walk_packages(schemas.__path__, "schemas."):
        importlib.import_module(module.name)
    found, new = set[type[BaseModel]](), [Schema]
    while new:
        model = new.pop()
        found.add(model)
        new += [below for below in model.__subclasses__() if below not in found]
    own = (model for model in found if model.__module__.split(".")[0] == "schemas")
    return sorted(own, key=lambda model: f"{model.__module__}.{model.__name__}")


def limits(metadata: list[Any]) -> set[str]:
    """Which ends are bounded."""
    flat = [
        part
        for item in metadata
        for part in (item.metadata if isinstance(item, FieldInfo) else [item])
    ]
    ends = set()
    for item in flat:
        if isinstance(item, annotated_types.Ge | annotated_types.Gt):
            ends.add("low")
        if isinstance(item, annotated_types.Le | annotated_types.Lt):
            ends.add("high")
        if isinstance(item, annotated_types.Interval):
            ends |= {"low"} if (item.ge, item.gt) != (None, None) else set()
            ends |= {"high"} if (item.le, item.lt) != (None, None) else set()
    return ends


def unbounded(annotation: Any, metadata: list[Any]) -> Iterator[Any]:
    """Kinds of numbers in an annotation, also of keys, that have no end, or no bound at one; and
    what may be anything."""
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata = [*metadata, *more]
    if annotation in (int, float) and limits(metadata) != {"low", "high"}:
        yield annotation
    if annotation is Any or annotation is object:
        yield annotation
    if get_origin(annotation) is not Literal:
        container = get_origin(annotation) in (list, tuple, dict, set, frozenset)
        for part in get_args(annotation):
            yield from unbounded(part, [] if container else metadata)


def fields_without_bounds(model: type[BaseModel]) -> list[str]:
    return [
        f"{model.__name__}.{name}"
        for name, field in model.model_fields.items()
        if list(unbounded(field.annotation, list(field.metadata)))
    ]


def test_every_number_has_bounds():
    found = models()
    assert len(found) > 150
    without = {name for model in found for name in fields_without_bounds(model)}
    assert without == set(ANYTHING)


SHARD = {"file": "a.arrow", "pairs": 3, "source_tokens": 5, "target_tokens": 7, "bytes": 9,
         "sha256": 64 * "0"}  # fmt: skip
WINDOW = {"first_step": 1, "last_step": 3, "seconds": 1.5, "pairs": 4, "tokens": 5,
          "padded_tokens": 7, "input_wait_seconds": 0.25}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "right", "field", "value", "remedy"),
    [
        (Window, WINDOW, "seconds", "1e400", "finite number"),
        (Window, WINDOW, "seconds", "NaN", "finite number"),
        (Window, WINDOW, "seconds", "-1.5", "at least 0"),
        (Window, WINDOW, "seconds", "1e30", "at most 1000000000"),
        (Window, WINDOW, "tokens", "-5", "at least 0"),
        (Window, WINDOW, "tokens", "9" * 30, "at most 9007199254740992"),
        (Window, WINDOW, "last_step", "9" * 5_000, ""),
        (Shard, SHARD, "pairs", "10000000000000000000", "at most 9007199254740992"),
        (Shard, SHARD, "bytes", "-9", "at least 0"),
    ],
)
def test_a_result_with_a_number_out_of_bounds_is_refused(
    tmp_path, model, right, field, value, remedy
):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(right))
    read_record(path, model)
    path.write_text(json.dumps(right | {field: "@"}).replace('"@"', value))
    problem = problem_of(read_record, path, model)
    assert problem.file == str(path)
    assert remedy in problem.remedy
    assert "make it again" in problem.remedy
    assert not remedy or problem.field == field


def test_the_loss_of_a_run_that_diverges_is_within_its_bounds():
    (loss,) = get_args(Repeat.model_fields["validations"].annotation)
    assert loss(step=1, loss=3e38).loss == 3e38
