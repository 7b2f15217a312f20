"""Studies of the user's own training."""

from typing import Any

import pytest

from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from transformer_core.study.checks import REPORT, asked_in_vain, contradictions, violations
from transformer_core.study.users_files import own_models

TASK = {"kind": "import", "factory": "docs.examples.my_training:build"}


def study(**more: Any) -> Study:
    return Study.model_validate({"name": "mine", "variants": ["single"], "task": TASK} | more)


def spec(**more: Any) -> RunSpec:
    return RunSpec.model_validate({"variant": "single", "task": TASK} | more)


def test_a_plain_study_is_valid():
    mine = study(comparison={"margin": 0.05}, search=None, memory=None, quality=None)
    for one in (study(), mine):
        assert list(contradictions(one, "study")) == []
    assert list(violations(spec())) == []
    assert list(asked_in_vain(["--cores", REPORT], study())) == []


@pytest.mark.parametrize(
    ("section", "value", "field"),
    [
        ("model", {"kind": "transformer", "d_model": 64}, "model.d_model"),
        ("tokenizer", {"vocabulary": 500}, "tokenizer.vocabulary"),
        ("batching", {"kind": "token_budget", "tokens": 999}, "batching.tokens"),
    ],
)
def test_unused_sections_are_refused(section, value, field):
    assert [name for name, *_ in violations(spec(**{section: value}))] == [field]


@pytest.mark.parametrize(
    ("sections", "field", "words"),
    [
        ({"comparison": {"sessions_least": 6}}, "comparison.sessions_least", "time"),
        ({"repeats": 3}, "repeats", "time"),
        ({"memory": {"largest_batch": {"variants": ["single"]}}}, "memory.largest_batch", "time"),
        ({"variants": ["single", "ddp"]}, "variants", "task.techniques"),
    ],
)
def test_measurements_of_variants_and_variants_are_refused(sections, field, words):
    (problem,) = contradictions(study(**sections), "study")
    assert problem.field == field
    assert words in f"{problem.message} {problem.remedy}"


def test_files_that_a_remedy_may_name_are_targets():
    read = ["results/study.json", "--forcerun", "results/runs/single/spec.json"]
    assert list(asked_in_vain(read, study())) == []


def test_other_targets_are_refused():
    (problem,) = asked_in_vain(["results/search.json"], study())
    assert REPORT in problem.remedy


def test_imports_of_the_users_module_are_tracked():
    lines = own_models([spec()])
    assert [line.split()[0] for line in lines if "examples" in line] == [
        "docs/examples/byte_gpt.py",
        "docs/examples/my_training.py",
    ]
