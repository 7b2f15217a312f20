"""The short runs that certificates need."""

from typing import Any

import pytest

from schemas.config.measurement import REFERENCE
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.training import Constant, Fp32
from schemas.config.variants import Variant
from schemas.errors import ConfigError
from transformer_core.study.certification import (
    ShortRun,
    compared_with,
    reference_spec,
    short_runs,
    short_spec,
)
from transformer_core.study.resolve import check_study, resolve_all

STUDY: dict[str, Any] = {
    "name": "tiny",
    "variants": ["single"],
    "filter": {"max_tokens": 16},
    "model": {"kind": "transformer", "dropout": 0.3},
    "training": {"precision": {"kind": "bf16"}, "accumulation": {"micro_batches": 2}},
    "certificate": {"steps": 7, "learning_rate": 0.01},
}


def variant(equivalence: Any, change: dict[str, Any] | None = None) -> Variant:
    return Variant(equivalence=equivalence, change=change or {}, summary="A change.")


VARIANTS = {
    "single": variant("tolerance", {"parallel": {"kind": "single"}}),
    "ddp": variant("tolerance", {"parallel": {"kind": "ddp"}}),
    "bf16": variant({"kind": "statistical", "seeds": 4}),
    "fp16": variant("statistical"),
    "logging": variant({"kind": "bitwise", "against": "ddp"}, {"training": {"log_every": 3}}),
    "sgd": variant("different", {"training": {"optimizer": {"kind": "sgd"}}}),
}


def study(*names: str, **fields: Any) -> Study:
    return check_study(STUDY | {"variants": names, "baseline": names[0]} | fields, "study.yaml")


def runs_of(of: Study, variants: dict[str, Variant] = VARIANTS) -> dict[str, ShortRun]:
    return short_runs(of, variants, resolve_all(of, variants))


def test_runs_that_certificates_need():
    found = runs_of(study("single", "bf16", "fp16"))
    assert all(run.spec.variant == name for name, run in found.items())
    needs = {name: (run.seeds, run.first_look, run.margin) for name, run in found.items()}
    assert needs == {
        "single": (1, 0, 0),
        # As many seeds as any certificate needs. Only statistical runs look at losses.
        REFERENCE: (8, 0, 0),
        "bf16": (8, 4, 0.005),
        "fp16": (6, 3, 0.005),
    }
    # A bitwise variant needs the one that it must equal; a different model only its own run.
    assert {name: run.seeds for name, run in runs_of(study("logging")).items()} == {
        "logging": 1,
        "ddp": 1,
    }
    assert {name: run.seeds for name, run in runs_of(study("sgd")).items()} == {"sgd": 1}
    apart = {"apart": variant("different", {"parallel": {"kind": "local_steps"}})}
    assert runs_of(study("apart"), apart) == {}, "replicas that train apart have no expected steps"
    found = {name: compared_with(VARIANTS[name]) for name in ("sgd", "ddp", "logging")}
    assert found == {"sgd": None, "ddp": REFERENCE, "logging": "ddp"}


def test_the_reference_is_plain():
    spec = reference_spec(study("single"))
    assert (spec.model.attention.kind, spec.model.qkv.kind) == ("reference", "separate")
    assert spec.training.precision == Fp32()
    assert spec.training.accumulation.micro_batches == 1
    assert spec.training.optimizer.fused is False
    assert (spec.parallel.kind, spec.world_size) == ("single", 1)
    assert spec.model.d_model == study("single").model.d_model
    assert RunSpec.model_validate_json(spec.canonical_json()) == spec
    spec = reference_spec(study("single", model={"kind": "torch_nn", "d_model": 32}))
    assert (spec.model.kind, spec.model.d_model) == ("torch_nn", 32)


def test_the_reference_of_muon_updates_the_same_matrices():
    of = study("single", training={"optimizer": {"kind": "muon"}})
    assert reference_spec(of).model.qkv == of.model.qkv
    assert of.model.qkv.kind == "fused"


@pytest.mark.parametrize(
    ("loss", "reference"), [("kl_divergence", "kl_divergence"), ("one_pass", "whole")]
)
def test_the_reference_minimizes_the_same_function(loss, reference):
    spec = reference_spec(study("single", training={"loss": {"kind": loss}}))
    assert spec.training.loss.kind == reference


def test_short_runs_are_short_and_without_dropout():
    of = study("ddp")
    spec = short_spec(of, resolve_all(of, VARIANTS)["ddp"])
    training = spec.training
    assert (training.steps, training.validate_every, training.checkpoint_every) == (7, 0, 0)
    assert training.schedule == Constant(kind="constant", peak=0.01)
    assert training.log_every == of.training.log_every
    assert 0.0 < spec.model.dropout < 1e-6, "kernels with dropout that drop nothing"
    assert spec.parallel.kind == "ddp"


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"dropout": 0.2}},
        {"training": {"schedule": {"factor": 2.0}}},
        {"training": {"seed": 2}},
        {"training": {"label_smoothing": 0.2}},
        {"batching": {"tokens": 2048}},
        {"training": {"clip_norm": 0.5}},
    ],
    ids=str,
)
def test_short_runs_keep_the_changes_of_a_variant(change):
    of = study("plain", "changed")
    variants = {"plain": variant("tolerance"), "changed": variant("tolerance", change)}
    specs = resolve_all(of, variants)
    plain, changed = (short_spec(of, spec) for spec in specs.values())
    assert plain != changed.model_copy(update={"variant": "plain"})


def test_a_model_that_is_different_by_design_may_have_a_dropout_of_its_own():
    """Otherwise the short run would drop elements that the plain function does not drop."""
    change = {"model": {"dropout": 0.2}}
    variants = {
        "other": variant("different", change),
        "same": variant({"kind": "bitwise", "against": "other"}, change),
        "wrong": variant("tolerance", change),
    }
    found = runs_of(study(*variants), variants)
    nothing = {name: run.spec.model.dropout < 1e-6 for name, run in found.items()}
    assert nothing == {"other": True, "same": True, "wrong": False, REFERENCE: True}
    assert {name: run.timed.model.dropout for name, run in found.items()} == dict.fromkeys(
        variants, 0.2
    ) | {REFERENCE: 0.3}


@pytest.mark.parametrize(
    "changed",
    [{"repeats": 9}, {"measurement": {"window_steps": 3}}, {"evaluation": {"beam_size": 1}}],
)
def test_timing_and_evaluation_make_no_certificate_stale(changed):
    one, other = runs_of(study("ddp")), runs_of(study("ddp", **changed))
    assert one.keys() == other.keys()
    assert all(one[name].spec.digest() == other[name].spec.digest() for name in one)


def test_a_reference_outside_the_study_must_resolve():
    broken = variant("tolerance", {"training": {"steps": 0}})
    variants = {"a": variant({"kind": "bitwise", "against": "b"}), "b": broken}
    with pytest.raises(ConfigError, match=r"b\.change\.training\.steps"):
        runs_of(study("a"), variants)
