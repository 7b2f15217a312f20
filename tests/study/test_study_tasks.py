"""Tasks: their requirements on other sections, and variants that do not apply to them."""

from pathlib import Path
from typing import Any

import pytest

from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.errors import ConfigError, Unsupported
from tests.refusals import problem_of
from transformer_core.common.yaml_files import read_mapping
from transformer_core.run.launcher import launcher
from transformer_core.study.certification import short_runs
from transformer_core.study.checks import contradictions, violations
from transformer_core.study.resolve import check_study, resolve_all
from transformer_core.study.variants import read_variants

ROOT = Path(__file__).resolve().parents[2]
VARIANTS, _ = read_variants(ROOT / "config/variants.yaml")
TEXTS = {"variant": "single", "task": {"kind": "language_model", "context": 64}}


def test_a_language_model_has_its_own_defaults():
    """A translation's run spec names no task, so that older results stay valid."""
    assert "task" not in RunSpec(variant="a").model_dump(mode="json")
    spec = RunSpec.model_validate(TEXTS)
    assert (spec.corpus.kind, spec.model.kind) == ("grammar_documents", "decoder_only")
    assert spec.training.label_smoothing == 0
    assert spec.longest == spec.filter.max_tokens == 64
    assert not list(violations(spec))
    # It survives writing and reading.
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec
    # Explicit settings are kept.
    sections = {"training": {"label_smoothing": 0.2}, "filter": {"max_characters": 10}}
    spec = RunSpec.model_validate(TEXTS | sections)
    assert spec.training.label_smoothing == 0.2
    assert (spec.filter.max_characters, spec.filter.max_tokens) == (10, 64)


@pytest.mark.parametrize("context", ["abc", 2_000_000, True])
def test_a_wrong_context_is_a_single_mistake(context):
    """No other section reports a value that it only takes from the task."""
    settings = {"name": "s", "variants": ["single"], "task": TEXTS["task"] | {"context": context}}
    assert problem_of(check_study, settings, "study.yaml").field == "task.context"


LISTED = read_mapping(ROOT / "config/studies/language_model.yaml")


def study_of_texts(*more: str, **fields: Any) -> Study:
    """The study of a language model with ``more`` variants."""
    variants = [*LISTED["variants"], *more]
    return check_study(LISTED | {"variants": variants} | fields, "study.yaml")


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("memory_together", "no model.memory_products = together"),
        ("norm_published", "no model.norm_method = published"),
        ("batch_packed", "no batching.rows.kind = packed"),
        ("huggingface", "no model.kind = huggingface"),
    ],
)
def test_a_technique_that_does_not_apply_is_unsupported_with_the_reason(name, lacks):
    study = study_of_texts(name)
    specs = resolve_all(study, VARIANTS)
    assert set(specs) == set(study.variants)
    found = specs[name]
    assert found.no_meaning
    assert found.no_meaning.endswith(f"decoder_only, which has {lacks}")
    assert [spec.variant for spec in specs.values() if spec.no_meaning] == [name]
    with pytest.raises(Unsupported, match="does not apply to a language model"):
        launcher(found, "worker")
    # Its short run gives the same reason.
    assert short_runs(study, VARIANTS, specs)[name].spec.no_meaning == found.no_meaning


def wrong(field: str) -> dict[str, Variant]:
    """A variant ``wrong`` that sets this field of the model to 7."""
    change = {"model": {field: 7}}
    return {"wrong": Variant(change=change, equivalence="tolerance", summary="Wrong.")}


def test_a_mistake_is_still_an_error():
    study = study_of_texts("wrong")
    for field in ("heads", "colour"):
        with pytest.raises(ConfigError, match=field):
            resolve_all(study, VARIANTS | wrong(field))
    # A baseline that does not apply leaves nothing to compare with.
    study = study_of_texts(variants=["norm_published"], baseline="norm_published")
    with pytest.raises(ConfigError, match="norm_method"):
        resolve_all(study, VARIANTS)


@pytest.mark.parametrize(
    ("name", "section", "field"),
    [
        ("local_steps", {"training": {"steps": 25}}, "parallel.every"),
        ("accum2_sync", {"batching": {"tokens": 128}}, "batching.tokens"),
        ("batch_quarter", {"batching": {"tokens": 256}}, "batch_sizes"),
    ],
)
def test_a_variant_that_only_the_sizes_of_the_study_forbid_is_refused(name, section, field):
    sections = {key: LISTED[key] | change for key, change in section.items()}
    study = study_of_texts(variants=["single", name], baseline="single", **sections)
    with pytest.raises(ConfigError, match=field):
        resolve_all(study, VARIANTS)


def test_a_composition_does_not_apply_by_the_field_that_it_sets():
    texts = study_of_texts("batch_fixed_packed")
    reason = resolve_all(texts, VARIANTS)["batch_fixed_packed"].no_meaning
    assert reason.endswith("which has no batching.rows.kind = packed")
    composed = {"with": ["kernels_liger", "adam_published"]}
    pairs = check_study({"name": "a", "variants": ["single", composed]}, "study.yaml")
    reason = resolve_all(pairs, VARIANTS)[pairs.variants[1]].no_meaning
    assert reason.endswith("which has no model.kernels = liger")


def test_a_change_for_language_models_does_not_apply_to_a_translation():
    study = check_study({"name": "a", "variants": ["single", "kernels_liger"]}, "study.yaml")
    reason = resolve_all(study, VARIANTS)["kernels_liger"].no_meaning
    assert "translation model of kind transformer, which has no model.kernels = liger" in reason
    study = study.model_copy(update={"variants": ["single", "wrong"]})
    with pytest.raises(ConfigError, match="colour"):
        resolve_all(study, VARIANTS | wrong("colour"))


def test_a_variant_in_a_race_may_not_have_the_name_of_another_side():
    study = study_of_texts(quality={"loss": 4, "also": ["best"]})
    study = study.model_copy(update={"variants": [*study.variants, "best"]})
    (problem,) = contradictions(study, "study.yaml")
    assert (problem.field, problem.value) == ("quality.also[0]", "best")


def test_a_beam_is_no_wider_than_the_vocabulary():
    small = {"kind": "file", "path": __file__, "vocabulary": 5}
    data = {"name": "a", "variants": ["single"], "tokenizer": small, "evaluation": {"beam_size": 6}}
    (problem,) = contradictions(check_study(data, "study.yaml"), "study.yaml")
    assert (problem.field, problem.value) == ("evaluation.beam_size", 6)


def test_a_change_that_another_kind_of_model_lacks_does_not_apply():
    llama = {"model": {"kind": "huggingface_causal", "architecture": "llama"}}
    names = ["single", "kernels_liger", "attention_sdpa"]
    study = study_of_texts(variants=names, baseline="single", **llama)
    reason = resolve_all(study, VARIANTS)["kernels_liger"].no_meaning
    assert reason.endswith("of kind huggingface_causal, which has no model.kernels = liger")
    reason = resolve_all(study, VARIANTS)["attention_sdpa"].no_meaning
    assert reason.endswith("has no model.attention = {'kind': 'sdpa'} (only 'sdpa' or 'eager')")


def test_heads_that_do_not_divide_the_width_are_refused_unless_their_own_width_is_set():
    library = {"kind": "huggingface_causal", "architecture": "qwen3", "d_model": 40, "heads": 3}
    for options, expected in (({}, [("model.heads", 3)]), ({"head_dim": 8}, [])):
        spec = RunSpec.model_validate(TEXTS | {"model": library | {"options": options}})
        assert [(field, value) for field, value, _, _ in violations(spec)] == expected
    # A model of the user's own may have other ideas of both.
    own = {"kind": "import", "factory": "docs.examples.own_model:build", "d_model": 41}
    assert not list(violations(RunSpec.model_validate({"variant": "own", "model": own})))


def test_quality_in_bleu_is_refused():
    (problem,) = contradictions(study_of_texts(quality={"bleu": 20}), "study.yaml")
    assert problem.field == "quality.bleu"
    assert not list(contradictions(study_of_texts(quality={"loss": 4}), "study.yaml"))
