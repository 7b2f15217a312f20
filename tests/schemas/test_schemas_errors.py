"""Errors of configuration files: each names file, field, value and remedy."""

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from schemas.config.training import Fp32
from schemas.config.variants import Variant
from schemas.errors import ConfigError, ConfigProblem, from_validation, nearest
from schemas.results import Interval
from tests.refusals import problem_of, problems_of
from transformer_core.study.resolve import check_study, resolve
from transformer_core.study.variants import read_variants

STUDY = {"name": "tiny", "variants": ["single"]}
MODEL = {"kind": "transformer"}
ADAMW = {"kind": "adamw"}
URL = {"url": "https://example.org/a.gz", "sha256": "0" * 64}
PAIR = {"source": URL, "target": URL}
WEB = {"kind": "url", "name": "web", "train": PAIR, "validation": PAIR, "test": PAIR}

WRONG: list[tuple[dict[str, Any], str, Any, str]] = [
    # unknown fields
    ({"modle": {}}, "modle", {}, "did you mean model?"),
    ({"model": MODEL | {"head": 2}}, "model.head", 2, "did you mean heads?"),
    ({"training": {"schedule": {"kind": "noam", "warmups": 2}}}, "training.schedule.warmups", 2,
     "did you mean warmup?"),
    ({"measurement": {"zzz": 1}}, "measurement.zzz", 1, "choose from warmup_steps, window_steps"),
    # in a section that may be null
    ({"search": {"candidates": 3}}, "search.candidates", 3, "choose from budget, largest"),
    # missing fields
    ({"training": {"schedule": {"kind": "linear"}}}, "training.schedule.peak", None, "add peak"),
    ({"corpus": WEB | {"test": {"source": URL}}}, "corpus.test.target", None, "add target"),
    # kinds
    ({"corpus": {"kind": "txt"}}, "corpus", {"kind": "txt"}, "kind: did you mean text?"),
    ({"batching": {"pairs": 8}}, "batching", {"pairs": 8},
     "add kind: choose from fixed_size, token_budget"),
    ({"training": {"precision": "bf16"}}, "training.precision", "bf16", "write {kind: bf16}"),
    ({"model": {"kind": "rnn"}}, "model", {"kind": "rnn"}, "kind: did you mean torch_nn?"),
    # The nearest word is cpu.
    ({"machine": {"device": "gpu"}}, "machine.device", "gpu", "choose from auto, cpu, cuda"),
    # ranges
    ({"model": MODEL | {"heads": 0}}, "model.heads", 0, "give a number of at least 1"),
    ({"tokenizer": {"vocabulary": 10**8}}, "tokenizer.vocabulary", 10**8, "at most 1000000"),
    ({"model": MODEL | {"dropout": 1.0}}, "model.dropout", 1.0, "give a number below 1"),
    ({"machine": {"timeout": 0}}, "machine.timeout", 0, "give a number above 0"),
    ({"training": {"clip_norm": float("inf")}}, "training.clip_norm", float("inf"),
     "give a finite number"),
    # types
    ({"training": {"steps": "many"}}, "training.steps", "many", "give a whole number"),
    ({"training": {"steps": 2.5}}, "training.steps", 2.5, "give a whole number"),
    ({"training": {"steps": None}}, "training.steps", None, "give a whole number"),
    ({"model": MODEL | {"dropout": "low"}}, "model.dropout", "low", "give a number, in digits"),
    ({"model": MODEL | {"dropout": []}}, "model.dropout", [], "give a number, in digits"),
    ({"replace_results": "maybe"}, "replace_results", "maybe", "give true or false"),
    ({"name": 5}, "name", 5, "give text, in quotes"),
    ({"machine": 3}, "machine", 3, "give fields, each as name: value"),
    ({"search": False}, "search", False, "give fields, each as name: value, or null for none"),
    ({"variants": "single"}, "variants", "single", "give a list: [first, second]"),
    ({"variants": []}, "variants", [], "give at least 1 of them"),
    ({"training": {"optimizer": ADAMW | {"betas": [0.9]}}}, "training.optimizer.betas[1]", None,
     "add a value"),
    ({"training": {"optimizer": ADAMW | {"betas": [0.9, 2]}}}, "training.optimizer.betas[1]", 2,
     "give a number below 1"),
    ({"model": {"kind": "import", "factory": "a:b", "options": {"x": [1]}}}, "model.options.x", [1],
     "give true or false, or give a whole number, or give a number, in digits, or give text"),
    # texts
    ({"name": "My Study"}, "name", "My Study", "use lower-case letters, digits and underscores"),
    ({"name": "x" * 65}, "name", "x" * 65, "give at most 64 characters"),
    ({"title": ""}, "title", "", "give at least 1 character"),
    ({"corpus": WEB | {"train": {"source": URL | {"url": "ftp://x"}, "target": URL}}},
     "corpus.train.source.url", "ftp://x", "begins with https://"),
    ({"corpus": WEB | {"train": {"source": URL | {"sha256": "AB"}, "target": URL}}},
     "corpus.train.source.sha256", "AB", "64 lower-case hexadecimal digits"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "field", "value", "remedy"), WRONG, ids=[f"{w[1]}={w[2]!r:.20}" for w in WRONG]
)
def test_studies(fields, field, value, remedy):
    problem = problem_of(check_study, STUDY | fields, "config/mine.yaml")
    assert (problem.file, problem.field, problem.value) == ("config/mine.yaml", field, value)
    assert remedy in problem.remedy
    text = str(ConfigError([problem]))
    for part in ("config/mine.yaml", field, problem.message, problem.remedy):
        assert part in text


@pytest.mark.parametrize("data", [None, {}, []])
def test_an_empty_study_lacks_required_fields(data):
    found = problems_of(check_study, data, "empty.yaml")
    assert [problem.remedy for problem in found] == ["add name", "add variants"]
    problem = problem_of(check_study, ["name"], "list.yaml")
    assert (problem.field, problem.message) == ("(top level)", "is not a section with fields")


GOOD = "equivalence: tolerance, summary: s"
WRONG_VARIANTS = [
    (f"a: {{{GOOD}, chnge: {{}}}}", "a.chnge", {}, "did you mean change?"),
    (f"a: {{{GOOD}, change: [1]}}", "a.change", [1], "give fields"),
    ("a: {summary: s}", "a.equivalence", None, "add equivalence"),
    ("a: {summary: s, equivalence: bit}", "a.equivalence", "bit", "did you mean bitwise?"),
    ("a: {summary: s, equivalence: {kind: tolerance, los: 1}}", "a.equivalence.los", 1,
     "did you mean loss?"),
    (f"a: {{{GOOD}}}\nb: {{summary: s, equivalence: {{kind: bitwise, against: aa}}}}",
     "b.equivalence.against", "aa", "did you mean a?"),
    (f"reference: {{{GOOD}}}", "reference", "reference", "rename it"),
    (f"DDP-2: {{{GOOD}}}", "DDP-2", "DDP-2", "use lower-case letters"),
    ("a: 3", "a", 3, "give fields"),
    (f"a: {{{GOOD}, change: {{modle: {{}}}}}}", "a.change", {"modle": {}}, "did you mean model?"),
    (f"a: {{{GOOD}, change: {{variant: b}}}}", "a.change", {"variant": "b"}, "choose from "),
    *(
        (f"a: {{{GOOD}, change: {{{name}: {{}}}}}}", "a.change", {name: {}},
         f"put {name} in a study of its own")
        for name in ("corpus", "filter", "tokenizer", "evaluation")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "field", "value", "remedy"), WRONG_VARIANTS)
def test_variants(tmp_path, text, field, value, remedy):
    path = tmp_path / "variants.yaml"
    path.write_text(text)
    problem = problem_of(read_variants, path)
    assert (problem.file, problem.field, problem.value) == (str(path), field, value)
    assert remedy in problem.remedy


WRONG_CHANGES: list[tuple[dict[str, Any], str, Any, str]] = [
    ({"parallel": {"kind": "dpd"}}, "parallel", {"kind": "dpd"}, "kind: did you mean ddp or"),
    ({"parallel": {"kind": "ddp", "bucket": 3}}, "parallel.bucket", 3, "did you mean bucket_mb"),
    ({"parallel": {"bucket_mb": 3}}, "parallel", {"bucket_mb": 3}, "add kind"),
    ({"training": {"schedule": {"kind": "linear"}}}, "training.schedule.peak", None, "add peak"),
    ({"training": None}, "training", None, "give fields"),
]


@pytest.mark.parametrize(("change", "field", "value", "remedy"), WRONG_CHANGES)
def test_changes(change, field, value, remedy):
    study = check_study(STUDY, "study.yaml")
    variants = {
        "parent": Variant(change=change, equivalence="tolerance", summary="s"),
        "child": Variant(parent="parent", equivalence="tolerance", summary="s"),
    }
    problem = problem_of(resolve, study, "child", variants, "study.yaml")
    assert problem.file == "config/variants.yaml"
    assert (problem.field, problem.value) == (f"parent.change.{field}", value)
    assert remedy in problem.remedy


def test_all_mistakes_are_reported_at_once_up_to_a_limit():
    wrong = {"repeats": 0, "model": MODEL | {"heads": 0, "d_f": 1}}
    found = problems_of(check_study, STUDY | wrong, "study.yaml")
    assert {problem.field for problem in found} == {"repeats", "model.heads", "model.d_f"}
    many = {f"k{number}": 1 for number in range(5_000)}
    *said, others = problems_of(check_study, STUDY | many, "study.yaml")
    assert len(said) == 50
    assert (others.field, others.value) == ("(others)", 4_950)


def test_other_schemas_and_unforeseen_errors():
    with pytest.raises(ValidationError) as caught:
        Interval.model_validate({"median": 1, "low": 0, "high": "x", "samples": 1, "lo": 2})
    problems = from_validation(caught.value, Interval, "metrics.json").problems
    assert [(p.field, p.remedy) for p in problems] == [
        ("high", "give a number, in digits"),
        ("lo", "did you mean low?"),
    ]
    with pytest.raises(ValidationError) as caught:
        Interval.model_validate_json("{")
    (problem,) = from_validation(caught.value, Interval, "metrics.json").problems
    assert (problem.value, problem.remedy) == (None, "correct the syntax")
    assert problem.message.startswith("is not JSON: EOF")


def test_nearest():
    assert nearest("singel", ["single", "ddp"]) == "did you mean single?"
    assert nearest("xyz", ["single", "ddp", "ddp"]) == "choose from ddp, single"
    assert nearest("xyz", []) == "there are none to choose from"


def test_an_error_can_be_pickled():
    error = ConfigError([ConfigProblem("study.yaml", "steps", -1, "is below 1", "take 1 or more")])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.problems, str(again)) == (ConfigError, error.problems, str(error))


def test_a_section_is_written_as_in_a_study():
    problem = ConfigProblem("study.yaml", "training.precision", Fp32(), "is wrong", "mend it")
    assert "training.precision = {'kind': 'fp32'}" in str(problem)


def test_long_values_are_shortened_and_control_characters_escaped():
    text = str(ConfigProblem("f", "x", "y" * 500, "is long", "shorten it"))
    assert max(map(len, text.splitlines())) < 140
    assert "..." in text
    said = str(ConfigProblem("a\x1b[2Jb", "variants[0]", "\x9b2J", "is \x1b]0;x\x07", "none"))
    assert said.replace("\n", "").isprintable()
    assert r"a\x1b[2Jb" in said
