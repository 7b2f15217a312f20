"""Rules for every schema: a description, no extra keys, no changes, a current JSON Schema."""

import importlib
import inspect
import pkgutil
import sys

import pytest
from pydantic import ValidationError

import schemas
from schemas import generate, results
from schemas.base import Schema
from schemas.results.runs import Repeat

MODULES = [info.name for info in pkgutil.walk_packages(schemas.__path__, "schemas.")]
MODELS = sorted(
    {
        model
        for name in MODULES
        for _, model in inspect.getmembers(importlib.import_module(name), inspect.isclass)
        if issubclass(model, Schema) and model is not Schema
    },
    key=lambda model: model.__qualname__,
)


def test_every_schema_and_setting_is_described():
    for model in MODELS:
        assert model.__doc__, f"{model.__name__} has no docstring"
        if ".results." not in model.__module__:
            # The docstring of the class describes its kind.
            missing = set(model.model_fields) - generate.field_texts(model).keys() - {"kind"}
            assert not missing, f"{model.__name__}: describe {', '.join(sorted(missing))}"


def test_extra_keys_are_refused_and_records_cannot_be_changed():
    for model in MODELS:
        with pytest.raises(ValidationError) as caught:
            model.model_validate({"no_such_field": 1})
        found = {(error["loc"], error["type"]) for error in caught.value.errors()}
        assert (("no_such_field",), "extra_forbidden") in found, model
        with pytest.raises(ValidationError, match="frozen"):
            setattr(model.model_construct(), next(iter(model.model_fields)), "other")


@pytest.fixture(scope="module")
def made():
    """The generated files, made once for all tests, because that takes seconds."""
    return generate.generated()


@pytest.fixture(autouse=True)
def _made_once(monkeypatch, made):
    monkeypatch.setattr(generate, "generated", lambda: made)


def test_generated_files_are_current():
    stale = generate.drifted()
    assert not stale, f"{', '.join(stale)} stale; repair with: {generate.REPAIR}"
    folders = [generate.ROOT / "schemas/json", generate.ROOT / "docs/reference"]
    files = {path for folder in folders for path in folder.iterdir()}
    made = {generate.ROOT / name for name in generate.generated()}
    assert files == made, f"left over: {files - made}"


def test_generate_writes_and_checks(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["generate", "--check"])
    assert generate.main() == 1
    assert f"repair with: {generate.REPAIR}" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["generate"])
    assert generate.main() == 0
    assert generate.drifted() == []
    (tmp_path / "schemas/json/study.json").write_text("{}")
    (tmp_path / "docs/reference/study.md").unlink()
    assert generate.drifted() == ["schemas/json/study.json", "docs/reference/study.md"]


def test_names_of_results_are_imported_on_use():
    assert results.Repeat is Repeat
    assert results.STEP_COLUMNS
    with pytest.raises(AttributeError, match="'Nothing'"):
        results.Nothing  # noqa: B018
