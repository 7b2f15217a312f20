"""Run specs of variants, alone and combined."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config.measurement import Statistical, Tolerance
from schemas.config.model import HuggingFace, Transformer
from schemas.config.parallel import Machine, Single
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.training import Linear, Noam
from schemas.config.variants import Variant
from tests.refusals import problem_of, problems_of
from transformer_core.study.resolve import (
    check_study,
    combine,
    exclusions,
    resolve,
    resolve_all,
)
from transformer_core.study.variants import loosest, read_variants

SHARED = set(RunSpec.model_fields) & set(Study.model_fields)


def study(**fields: Any) -> Study:
    data = {"name": "tiny", "variants": ["single"], "filter": {"max_tokens": 16}}
    return check_study(data | fields, "study.yaml")


def variant(
    change: dict[str, Any] | None = None, parent: str | None = None, equivalence: Any = "tolerance"
) -> Variant:
    return Variant(parent=parent, change=change or {}, equivalence=equivalence, summary="A change.")


CHANGES: dict[tuple[str, str], st.SearchStrategy[Any]] = {
    ("model", "d_ff"): st.integers(1, 4096),
    ("model", "dropout"): st.sampled_from([0.0, 0.3]),
    ("training", "seed"): st.integers(0, 99),
    ("training", "log_every"): st.integers(1, 99),
    ("machine", "threads"): st.integers(0, 9),
    ("batching", "tokens"): st.integers(1000, 9999),
}


MODEL = {"kind": "transformer"}
KINDS = {"batching": {"kind": "token_budget"}, "model": MODEL}


def nested(flat: dict[tuple[str, str], Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for (section, field), value in flat.items():
        tree.setdefault(section, dict(KINDS.get(section, {})))[field] = value
    return tree


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    st.lists(st.fixed_dictionaries({}, optional=CHANGES), min_size=1, max_size=4),
    st.fixed_dictionaries({}, optional=CHANGES),
)
def test_the_latest_change_wins_and_the_rest_is_the_study(changes, own):
    base = study(**nested(own))
    names = [f"v{number}" for number in range(len(changes))]
    variants = {
        name: variant(nested(change), names[number - 1] if number else None)
        for number, (name, change) in enumerate(zip(names, changes, strict=True))
    }
    spec = resolve(base, names[-1], variants)
    assert spec.variant == names[-1]
    expected = {key: value for change in changes for key, value in change.items()}
    for section, field in CHANGES:
        of_study = getattr(getattr(base, section), field)
        found = getattr(getattr(spec, section), field)
        assert found == expected.get((section, field), of_study)
    for section in SHARED - {section for section, _ in expected} - {"machine"}:
        assert getattr(spec, section) == getattr(base, section)
    assert RunSpec.model_validate_json(spec.canonical_json()) == spec


def test_a_new_kind_keeps_the_fields_that_it_shares():
    base = study(
        training={"schedule": {"kind": "noam", "factor": 3.0, "warmup": 7}},
        model={"kind": "transformer", "d_model": 96, "heads": 6, "norm": "post"},
    )
    variants = {
        "same": variant({"training": {"schedule": {"factor": 4.0}}}),
        "other": variant({"training": {"schedule": {"kind": "linear", "peak": 0.1}}}),
        "own": variant({"training": {"schedule": {"kind": "linear", "peak": 0.1, "warmup": 9}}}),
        "library": variant({"model": {"kind": "huggingface", "heads": 8}}),
        "back": variant({"model": {"kind": "transformer"}}, parent="library"),
    }
    schedules = {name: resolve(base, name, variants).training.schedule for name in variants}
    assert schedules["same"] == Noam(factor=4.0, warmup=7)
    assert schedules["other"] == Linear(kind="linear", peak=0.1, warmup=7)
    assert schedules["own"] == Linear(kind="linear", peak=0.1, warmup=9)
    assert resolve(base, "library", variants).model == HuggingFace(
        kind="huggingface", d_model=96, heads=8
    )
    back = resolve(base, "back", variants).model
    assert back == Transformer(d_model=96, heads=8), (
        "fields that the kind in between lacks are forgotten"
    )


def test_single_is_independent_of_the_devices_of_the_study():
    variants = {
        "single": variant({"parallel": {"kind": "single"}}),
        "unsaid": variant(),
        "ddp": variant({"parallel": {"kind": "ddp"}}),
        "back": variant({"parallel": {"kind": "single"}}, parent="ddp"),
    }
    one = study(machine={"devices_per_node": 2})
    two = study(machine={"devices_per_node": 4, "nodes": 3})
    for name in ("single", "unsaid", "back"):
        spec = resolve(one, name, variants)
        assert spec.digest() == resolve(two, name, variants).digest()
        assert (spec.world_size, spec.parallel) == (1, Single())
    assert resolve(one, "ddp", variants).digest() != resolve(two, "ddp", variants).digest()
    assert resolve(two, "ddp", variants).world_size == 12
    # Whichever way its run spec is built.
    machine = Machine(devices_per_node=4, nodes=2, threads=3, link={"bandwidth": 1e8})
    spec = RunSpec(variant="single", parallel=Single(), machine=machine)
    assert spec.machine == Machine(devices_per_node=1, nodes=1, threads=3)


def problems(study: Study, variants: dict[str, Variant]) -> list[tuple[str, str, Any, str]]:
    found = problems_of(resolve_all, study, variants, "study.yaml")
    return [(p.file, p.field, p.value, p.remedy) for p in found]


def test_names_in_the_study():
    variants = {"single": variant(), "ddp": variant({"parallel": {"kind": "ddp"}})}
    base = study(variants=["single", "dpd", "single"], baseline="singel")
    assert problems(base, variants) == [
        ("study.yaml", "baseline", "singel", "did you mean single?"),
        ("study.yaml", "variants[1]", "dpd", "did you mean ddp?"),
        ("study.yaml", "variants[2]", "single", "remove one"),
    ]


def test_a_mistake_is_reported_once_at_its_place():
    variants = {
        "single": variant({"model": {"headz": 2}}),
        "child": variant({"training": {"seed": 2}}, parent="single"),
        "grandchild": variant({"model": {"d_ff": 3}}, parent="child"),
    }
    of_parent = ("config/variants.yaml", "single.change.model.headz", 2, "did you mean heads?")
    assert problems(study(variants=list(variants)), variants) == [of_parent]
    variants = {"single": variant(), "other": variant({"training": {"seed": 5}})}
    base = study(variants=list(variants), model={"kind": "transformer", "heads": 3})
    of_study = ("study.yaml", "model.heads", 3, "use 2 or 4 heads, or change model.d_model")
    assert problems(base, variants) == [of_study]


@pytest.mark.parametrize("heads", [0, 3])
def test_the_latest_change_of_a_field_is_blamed(heads):
    variants = {
        "parent": variant({"model": {"heads": 2}}),
        "child": variant({"model": {"heads": heads}}, parent="parent"),
        "grandchild": variant({"model": {"d_ff": 3}}, parent="child"),
    }
    ((_, field, value, _),) = problems(study(variants=list(variants), baseline="parent"), variants)
    assert (field, value) == ("child.change.model.heads", heads)


def test_variants_that_need_different_values_are_all_reported():
    variants = {
        "single": variant(),
        "ddp": variant({"parallel": {"kind": "ddp"}}),
        "four": variant({"training": {"accumulation": {"micro_batches": 4}}}, parent="ddp"),
    }
    base = study(variants=list(variants), batching={"kind": "fixed_size", "pairs": 1})
    found = problems(base, variants)
    assert [field for _, field, _, _ in found] == ["batching.pairs", "batching.pairs"]
    assert "at least 2 pairs" in found[0][3]
    assert "at least 8 pairs" in found[1][3]


END = "equivalence: tolerance, summary: s"
VARIANT_FILES = {
    "unknown parent": (
        f"single: {{{END}}}\nchild: {{parent: singel, {END}}}\n",
        ("child.parent", "singel", "is not a variant", "did you mean single?"),
    ),
    "circle": (
        f"a: {{parent: c, {END}}}\nb: {{parent: a, {END}}}\nc: {{parent: b, {END}}}\n",
        ("b.parent", "a", "is circular: a -> c -> b -> a", "break the circle"),
    ),
    "no mapping": ("[a, b]\n", ("(top level)", ["a", "b"], "is not a mapping", "write name:")),
}


@pytest.mark.parametrize(("text", "expected"), VARIANT_FILES.values(), ids=VARIANT_FILES)
def test_variants_files(tmp_path, text, expected):
    path = tmp_path / "variants.yaml"
    path.write_text(text)
    problem = problem_of(read_variants, path)
    field, value, message, remedy = expected
    assert (problem.file, problem.field, problem.value) == (str(path), field, value)
    assert message in problem.message
    assert remedy in problem.remedy


PARTS = {
    "single": variant({"parallel": {"kind": "single"}}),
    "bf16": variant({"training": {"precision": {"kind": "bf16"}}}, "single", "statistical"),
    "fp16": variant({"training": {"precision": {"kind": "fp16"}}}, "single", "statistical"),
    "rare_log": variant({"training": {"log_every": 50}}, "single", "bitwise"),
    "ddp": variant({"parallel": {"kind": "ddp"}}),
    "view": variant({"parallel": {"bucket_view": True}}, "ddp"),
}
COMBINED = Study(
    name="test", variants=list(PARTS), baseline="single", training={"steps": 100, "seed": 1}
)


def test_a_combination_takes_the_own_change_of_every_part():
    spec = combine(COMBINED, PARTS, ("ddp", "view", "bf16"), "best")
    assert spec.variant == "best"
    assert spec.parallel.model_dump() == resolve(COMBINED, "view", PARTS).parallel.model_dump()
    assert spec.training.precision.kind == "bf16"
    none = combine(COMBINED, PARTS, (), "best")
    assert none == resolve(COMBINED, "single", PARTS).model_copy(update={"variant": "best"})


@pytest.mark.parametrize("parts", [("bf16", "fp16"), ("view",), ("view", "bf16")])
def test_changes_that_contradict_each_other_cannot_be_combined(parts):
    assert combine(COMBINED, PARTS, parts, "best") is None


def test_parts_that_set_a_field_differently_exclude_each_other():
    found = exclusions(PARTS, ["bf16", "fp16", "rare_log", "ddp", "view"])
    excluded = {name: set(others) for name, others in found.items() if others}
    assert excluded == {"bf16": {"fp16"}, "fp16": {"bf16"}}


def test_a_combination_has_the_class_of_its_loosest_part():
    assert isinstance(
        loosest([PARTS[name].equivalence for name in ("rare_log", "bf16", "ddp")]), Statistical
    )
    assert isinstance(loosest([PARTS[name].equivalence for name in ("rare_log",)]), Tolerance)
    assert isinstance(loosest([PARTS[name].equivalence for name in ("rare_log", "ddp")]), Tolerance)
