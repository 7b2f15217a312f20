"""Merging changes into sections; canonical JSON and its hash."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from schemas.base import Name, kinds_of, merge
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.training import Sgd
from tests.refusals import problem_in
from transformer_core.study.variants import leaves

LEAVES = st.none() | st.integers(0, 3) | st.sampled_from(["x", "y"]) | st.lists(st.integers(0, 3))
KINDS = st.sampled_from(["one", "two"])


def _section(children: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    fields = st.dictionaries(st.sampled_from("abc"), children, max_size=3)
    return st.builds(
        lambda f, kind: f | ({"kind": kind} if kind else {}), fields, st.none() | KINDS
    )


SECTIONS = _section(st.recursive(LEAVES, _section, max_leaves=8))


FIELDS_OF_KINDS = st.dictionaries(KINDS, st.frozensets(st.sampled_from(["a", "b", "c", "kind"])))


def at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


@settings(deadline=None, derandomize=True)
@given(SECTIONS, SECTIONS, FIELDS_OF_KINDS)
def test_the_change_wins_and_a_new_kind_keeps_only_shared_fields(old, new, fields):
    before = copy.deepcopy((old, new))
    merged = merge({"section": old}, {"section": new}, {("section",): fields})["section"]
    assert (old, new) == before, "neither input is touched"
    kind = new.get("kind", old.get("kind"))
    same = "kind" not in old or kind == old["kind"]
    kept = set(old) if same else set(old) & fields.get(kind, frozenset())
    assert set(merged) == set(new) | kept
    for name in kept - set(new):
        assert merged[name] == old[name]
    for path, value in leaves(new):
        # An empty section changes nothing; any other value is taken.
        if value != {}:
            assert at(merged, path) == value


def test_kinds_of_all_sections():
    kinds = kinds_of(RunSpec)
    assert kinds["training", "optimizer"]["sgd"] == set(Sgd.model_fields)
    hooks = {"ring", "compress", "powersgd", "emulated_link"}
    assert kinds["parallel", "hook"].keys() == hooks
    assert "qkv" in kinds["model",]["transformer"] - kinds["model",]["huggingface"]
    assert ("machine",) not in kinds


FIELDS: dict[tuple[str, ...], st.SearchStrategy[Any]] = {
    ("variant",): st.from_regex(r"\A[a-z][a-z0-9_]{0,20}\Z"),
    ("corpus", "seed"): st.integers(0, 10**6),
    ("corpus", "source_language"): st.text(min_size=1, max_size=5),
    ("batching", "tokens"): st.integers(1, 10**6),
    ("model", "dropout"): st.floats(0, 1, exclude_max=True).map(abs),
    ("model", "norm"): st.sampled_from(["pre", "post"]),
    ("model", "tied_embeddings"): st.booleans(),
    ("training", "steps"): st.integers(1, 10**6),
    ("training", "clip_norm"): st.floats(0, 1e9).map(abs),
    ("training", "optimizer", "betas"): st.lists(
        st.floats(0, 1, exclude_max=True).map(abs), min_size=2, max_size=2
    ),
    ("machine", "threads"): st.integers(0, 64),
}
CHOICES = st.fixed_dictionaries({}, optional=FIELDS)


def spec_of(values: dict[tuple[str, ...], Any]) -> RunSpec:
    data = RunSpec(variant="single").model_dump(mode="json")
    for path, value in values.items():
        at(data, path[:-1])[path[-1]] = value
    return RunSpec.model_validate(data)


def shuffled(tree: Any) -> Any:
    """The same mapping with its keys in the opposite order."""
    if isinstance(tree, dict):
        return {key: shuffled(value) for key, value in reversed(tree.items())}
    return tree


@settings(deadline=None, derandomize=True)
@given(CHOICES, CHOICES)
def test_canonical_json_round_trips_and_its_hash_changes_exactly_if_a_value_changes(values, others):
    spec, other = spec_of(values), spec_of(others)
    assert (spec.digest() == other.digest()) == (spec == other)
    text = spec.canonical_json()
    read = RunSpec.model_validate_json(text)
    assert (read, read.canonical_json(), read.digest()) == (spec, text, spec.digest())
    again = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert again == text
    # The order of keys does not matter.
    assert RunSpec.model_validate(shuffled(spec.model_dump(mode="json"))).digest() == spec.digest()


def test_defaults_are_written_out_and_numbers_normalised():
    spec = RunSpec(variant="single")
    assert '"dropout":0.1' in spec.canonical_json()
    whole = spec_of({("training", "clip_norm"): 2})
    assert whole.digest() == spec_of({("training", "clip_norm"): 2.0}).digest()


@pytest.mark.parametrize("name", ["", "A", "1a", "a-b", "a b", "a/b", "../a", "a\n", "ä", "x" * 65])
def test_names_are_folder_names(name):
    assert TypeAdapter(Name).validate_python("x" * 58 + "_100mb")
    with pytest.raises(ValidationError):
        TypeAdapter(Name).validate_python(name)


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("training.steps", {"training": {"steps": True}}),
        ("measurement.window_steps", {"measurement": {"window_steps": False}}),
        ("link_check.bandwidths", {"link_check": {"bandwidths": [1e6, True]}}),
    ],
)
def test_true_and_false_are_not_numbers(field, settings):
    problem = problem_in(Study, {"name": "mine", "variants": ["single"], **settings})
    assert problem.field == field
    assert "not a number" in problem.message
