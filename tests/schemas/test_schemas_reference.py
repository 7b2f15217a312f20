"""The reference of all settings: its examples are valid, and every number has its unit."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.base import Schema, exactly, schemas_in
from schemas.config.claims import Claim, Claims
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Sweep, Variant, Variants
from schemas.generate import settings_of, unit_of, value_text

REFERENCE = Path(__file__).parents[2] / "docs/reference"
FILES: list[Any] = [Study, RunSpec, Variants, Claims]

UNITS = {
    "steps": "steps",
    "warmup": "steps",
    "_every": "steps",
    "pairs": "pairs",
    "tokens": "tokens",
    "characters": "characters",
    "seconds": "seconds",
    "timeout": "seconds",
    "budget": "seconds",
    "latency": "seconds",
    "bandwidth": "bits per second",
    "message": "bytes",
    "limit": "bytes",
    "_mb": "MiB",
}
"""The unit of a number by a part of its name."""
OTHERWISE = {
    "Comparing.pairs": "–"  # turns of a session: it is their count
}


def every_schema() -> list[type[Schema]]:
    """The schemas of all files that a user writes, each once."""
    found = [schema for file in FILES for schema in schemas_in(file)]
    for schema in found:  # which grows
        for field in schema.model_fields.values():
            found += [inner for inner in schemas_in(field.annotation) if inner not in found]
    return sorted(set(found), key=lambda schema: schema.__name__)


def examples(page: str) -> Iterator[dict[str, Any]]:
    text = (REFERENCE / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S):
        yield yaml.safe_load(block)


def test_a_section_of_one_kind_has_a_single_description():
    text = (REFERENCE / "study.md").read_text(encoding="utf-8")
    assert "## training\n\nHow a run trains.\n\n|" in text


WHOLE = {"name": "example", "variants": ["single"]}


def test_sections_of_a_study_can_be_written_as_shown():
    shown = set()
    for example in examples("study.md"):
        if set(example) == set(WHOLE):
            continue
        ((section, settings),) = example.items()
        kinds = list(schemas_in(Study.model_fields[section].annotation))
        if any(set(settings) == set(settings_of(kind)) for kind in kinds):
            Study.model_validate(WHOLE | example)
            shown.add(section)
    fields = Study.model_fields.items()
    assert shown == {name for name, field in fields if list(schemas_in(field.annotation))}


FILES_AND_RECORDS = {RunSpec, Study, Variant, Sweep, Claim}
"""Their sections are the examples."""
SECTIONS = [schema for schema in every_schema() if schema not in FILES_AND_RECORDS]


@pytest.mark.parametrize("schema", SECTIONS, ids=lambda schema: schema.__name__)
def test_a_section_can_be_written_as_its_example(schema):
    example = settings_of(schema)
    schema.model_validate(example)
    fields = schema.model_fields.items()
    single = {field.alias or n for n, field in fields if not list(schemas_in(field.annotation))}
    assert set(example) >= single


def test_numbers_have_their_units():
    for schema in every_schema():
        for name, field in schema.model_fields.items():
            value = value_text(field.annotation, field.metadata)
            named = [unit for part, unit in UNITS.items() if part in name]
            if named and "number" in value and "by name" not in value:
                place = f"{schema.__name__}.{name}"
                assert unit_of(field) == OTHERWISE.get(place, named[0]), place


@pytest.mark.parametrize(
    ("number", "text"),
    [(2**20, "1048576"), (10**6, "1e+06"), (0.25, "0.25"), (7.0, "7"), (2.0**26, "67108864.0")],
)
def test_bounds_are_not_rounded(number, text):
    assert exactly(number) == text
    assert float(text) == number
