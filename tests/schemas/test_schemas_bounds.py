"""Every number that a user or a job writes has bounds, and others are refused."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo
from test_schemas_contract import MODELS

from schemas.results import Repeat, Shard, Window
from tests.refusals import problem_of
from transformer_core.common.records import read_record

ANYTHING = {
    "Answer.settings": "fields of a study, each of which was checked as such",
    "Variant.change": "fields of a study, which are checked when they are merged into one",
    "Composition.change": "the same",
    "Sweep.change": "the same",
    "Repeat.communication": "a strategy's report on its traffic, for readers of the page",
    "Repeat.numerics": "a precision's report, for readers of the page",
}
"""Fields that may hold anything, numbers included, and why."""


def has_bounds(metadata: list[Any]) -> bool:
    """Whether both ends are bounded."""
    parts = [
        part
        for item in metadata
        for part in (item.metadata if isinstance(item, FieldInfo) else [item])
    ]

    def limited(*names: str) -> bool:
        return any(getattr(part, name, None) is not None for part in parts for name in names)

    return limited("ge", "gt") and limited("le", "lt")


def unbounded(annotation: Any, metadata: list[Any]) -> Iterator[Any]:
    """The types in an annotation, also of keys, that are numbers without two bounds, or anything."""
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata = [*metadata, *more]
    if annotation in (int, float) and not has_bounds(metadata):
        yield annotation
    if annotation is Any or annotation is object:
        yield annotation
    if get_origin(annotation) is not Literal:
        container = get_origin(annotation) in (list, tuple, dict, set, frozenset)
        for part in get_args(annotation):
            yield from unbounded(part, [] if container else metadata)


def test_every_number_has_bounds():
    assert len(MODELS) > 150
    without = {
        f"{model.__name__}.{name}"
        for model in MODELS
        for name, field in model.model_fields.items()
        if [*unbounded(field.annotation, [*field.metadata])]
    }
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


def test_the_loss_of_a_diverging_run_is_within_its_bounds():
    (loss,) = get_args(Repeat.model_fields["validations"].annotation)
    assert loss(step=1, loss=3e38).loss == 3e38
