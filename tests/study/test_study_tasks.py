"""Tasks: what they ask of other sections, and that translations are as they were."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.config.run_spec import RunSpec
from schemas.config.variants import Variant
from schemas.errors import ConfigError, Unsupported
from transformer_core.run.launcher import launcher
from transformer_core.study.certification import short_runs
from transformer_core.study.checks import contradictions, violations
from transformer_core.study.resolve import check_study, resolve_all
from transformer_core.study.variants import read_variants

ROOT = Path(__file__).resolve().parents[2]
VARIANTS, _ = read_variants(ROOT / "config/variants.yaml")
TEXTS = {"variant": "single", "task": {"kind": "language_model", "context": 64}}


BEFORE_THERE_WERE_TASKS = "05d491854957d9b8af1e858287eb77df87e25185ec01b05f583f01e6366b48f7"
"""Digest of the run spec of all defaults, from the time before."""
SINCE = {
    "model": ("residual", "compile"),
    "machine": ("affinity", "cuda_allocator", "garbage_collection"),
}
"""Settings that came with techniques since, by section."""


def test_a_translation_has_the_run_spec_that_it_had_before_there_were_tasks():
    spec = RunSpec(variant="a").model_dump(mode="json")
    assert "task" not in spec
    for section, names in SINCE.items():
        for name in names:
            del spec[section][name]
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == BEFORE_THERE_WERE_TASKS


def test_a_language_model_has_defaults_of_its_own():
    spec = RunSpec.model_validate(TEXTS)
    assert (spec.corpus.kind, spec.model.kind) == ("grammar_documents", "decoder_only")
    assert spec.training.label_smoothing == 0
    assert spec.longest == spec.filter.max_tokens == 64
    assert not list(violations(spec))
    # A run spec that is written and read again is the same.
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


def test_what_is_set_stays():
    sections = {"training": {"label_smoothing": 0.2}, "filter": {"max_characters": 10}}
    spec = RunSpec.model_validate(TEXTS | sections)
    assert spec.training.label_smoothing == 0.2
    assert (spec.filter.max_characters, spec.filter.max_tokens) == (10, 64)


def study_of_texts() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(
        (ROOT / "config/studies/language_model.yaml").read_text()
    )
    return found


def test_the_study_resolves():
    study = check_study(study_of_texts(), "study.yaml")
    assert set(resolve_all(study, VARIANTS)) == set(study.variants)


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("memory_together", "no model.memory_products = together"),
        ("norm_published", "no model.norm_method = published"),
        ("batch_packed", "no batching.rows.kind = packed"),
        ("huggingface", "no model.kind = huggingface"),
    ],
)
def test_a_technique_without_meaning_is_unsupported_with_the_reason(name, lacks):
    listed = study_of_texts()
    study = check_study(listed | {"variants": [*listed["variants"], name]}, "study.yaml")
    specs = resolve_all(study, VARIANTS)
    found = specs[name]
    assert found.no_meaning
    assert found.no_meaning.endswith(f"decoder_only, which has {lacks}")
    assert [spec.variant for spec in specs.values() if spec.no_meaning] == [name]
    with pytest.raises(Unsupported, match="means nothing for a language model"):
        launcher(found, "worker")
    # Certificates, where its kind has one, are asked of it too, and say the same.
    runs = short_runs(study, VARIANTS, specs)
    assert (name in runs) == (name != "huggingface")
    assert all(
        run.spec.no_meaning == found.no_meaning for run in runs.values() if run.spec.variant == name
    )


def wrong(field: str) -> dict[str, Variant]:
    """A variant ``wrong`` that sets this field of the model to 7."""
    change = {"model": {field: 7}}
    return {"wrong": Variant(change=change, equivalence="tolerance", summary="Wrong.")}


def test_a_mistake_is_none_of_that():
    listed = study_of_texts()
    study = check_study(listed | {"variants": [*listed["variants"], "wrong"]}, "study.yaml")
    for field in ("heads", "colour"):
        with pytest.raises(ConfigError, match=field):
            resolve_all(study, VARIANTS | wrong(field))
    # A study whose baseline means nothing has nothing to compare with.
    study = check_study(
        listed | {"variants": ["norm_published"], "baseline": "norm_published"}, "study.yaml"
    )
    with pytest.raises(ConfigError, match="norm_method"):
        resolve_all(study, VARIANTS)


def test_a_change_for_language_models_alone_means_nothing_for_a_translation():
    study = check_study({"name": "a", "variants": ["single", "kernels_liger"]}, "study.yaml")
    reason = resolve_all(study, VARIANTS)["kernels_liger"].no_meaning
    assert "translation of kind transformer, which has no model.kernels = liger" in reason
    study = study.model_copy(update={"variants": ["single", "wrong"]})
    with pytest.raises(ConfigError, match="colour"):
        resolve_all(study, VARIANTS | wrong("colour"))


def test_quality_in_bleu_is_refused():
    study = check_study(study_of_texts() | {"quality": {}}, "study.yaml")
    (problem,) = contradictions(study, "study.yaml")
    assert problem.field == "quality"
