"""Verdicts on trainings that end in an unusual way."""

from typing import Any

import numpy as np
import pytest
import torch
from analysis_builders import seed_trajectory, trajectory

from schemas.config.measurement import Statistical, Tolerance
from schemas.results import Certificate
from schemas.results.certificates import Checks, CourseFloor
from tests.attacks.planted.changes import WIDE
from tests.attacks.short_trainings import recorded, spec_of
from tests.measure.short_runs import this_rank
from tests.training.small_training import small_spec, small_store
from transformer_core.certify.bounds import Weights
from transformer_core.certify.dropout import known_dropout, readable_vocabulary
from transformer_core.certify.dropout_bounds import judge_dropout
from transformer_core.certify.judge import certify
from transformer_core.certify.short_run_worker import record
from transformer_core.certify.tensors import FEWEST, MeanErrors, distance
from transformer_core.certify.updates import CheckedUpdates
from transformer_core.data.sharding.shard_store import PairStore
from transformer_core.training import evaluation
from transformer_core.training.assemble import assemble

INITIAL = {"a": np.zeros(2), "b": np.zeros(2)}
FINAL = {"a": np.ones(2), "b": np.ones(2)}
LOSSES = [8.0, 7.0, 6.0]


def verdict(equivalence: Any, run: Any, reference: Any, **weights: Any) -> Certificate:
    """The certificate of a training with these changes of its seeds, and of its final weights."""
    sides = [
        trajectory(name, [seed_trajectory(n, **changes) for n in (1, 2, 3)])
        for name, changes in (("run", run), ("reference", reference))
    ]
    return certify(equivalence, *sides, Weights(FINAL | weights, FINAL, INITIAL))


def test_a_clear_difference_of_losses_fails_even_if_another_comparison_decides_nothing():
    """This one has no record of its gradients."""
    off = {"losses": [loss * 1.1 for loss in LOSSES]}
    found = verdict(Statistical(kind="statistical"), off, {"losses": LOSSES})
    assert found.status == "not_equivalent"
    assert found.reason.startswith("smoothed final loss")


def test_weights_that_rounding_alone_decides_prove_nothing():
    floor = CourseFloor(loss=0.0, grad_norm=0.0, weights={"a": 1.0, "b": 1.0})
    reference = {"losses": LOSSES, "floor": floor}
    equal = distance("a", 1, torch.ones(2), torch.ones(2), 0.0)
    checks = Checks(points=[], gradients=[equal], updates=[])
    found = verdict(Tolerance(kind="tolerance"), {"losses": LOSSES, "checks": checks}, reference)
    assert found.status == "inconclusive"
    assert found.reason == "rounding alone decides all of its final weights"
    assert found.left_out == ["a", "b"]


@pytest.mark.parametrize("name", list(FINAL))
def test_final_weights_that_are_not_finite_are_not_the_same(name):
    broken = {name: np.array([1.0, np.nan])}
    found = verdict(Tolerance(kind="tolerance"), {}, {}, **broken)
    assert found.status == "not_equivalent"
    assert name in found.reason


@pytest.mark.parametrize("found", [torch.full((3,), torch.nan), torch.zeros(2)])
def test_a_tensor_that_is_not_finite_or_of_another_shape_is_not_zero(found):
    assert distance("w", 1, found, torch.zeros(3), 0.0).error == 1.0


def test_moved_and_lost_weights_show_also_at_a_skipped_step():
    kept, moved, lost = ({"w": torch.full((3,), value)} for value in (1.0, 1.001, torch.nan))
    for after, gradients, error, ratio, cosine in (
        (kept, None, 0.0, 1.0, 1.0),
        (moved, None, 1.0, 2.0, 0.0),
        (lost, None, 1.0, 2.0, 0.0),
        (lost, kept, 1.0, 0.0, 0.0),
    ):
        updates = CheckedUpdates(small_spec(), kept, {"w"})
        updates.done(1, after, gradients)
        (found,) = updates.read()
        assert (found.error, found.ratio, found.cosine) == (error, ratio, cosine)
        assert (found.rounding == 0) == (gradients is None), "rounding moves no weight"


def test_updates_are_compared_like_gradients():
    found, expected = torch.tensor([0.0, 2.0, 0.0]), torch.tensor([1.0, 1.0, 0.0])
    updates = CheckedUpdates(small_spec(), {"w": torch.zeros(3)}, {"w"})
    updates._compare("", 1, np.zeros(1), found.clone(), expected)
    for seen in (*updates.read(), distance("w", 1, found, expected, 0.0)):
        apart = (seen.error, seen.ratio, seen.cosine, seen.size)
        assert apart == pytest.approx((1.0, 2**0.5, 0.5**0.5, 2**0.5))


def test_a_mean_error_leaves_out_the_worst_step():
    means, right = MeanErrors(), torch.ones(4)
    for step in range(FEWEST):
        found = right + (5.0 if step == 1 else 0.01 * (step + 1))
        means.add(distance("w", step, found, right, 0.0), found, right, right)
    (mean,) = means.read()
    others = [0.01 * (step + 1) for step in range(FEWEST) if step != 1]
    assert mean.error == pytest.approx(sum(others) / FEWEST, rel=1e-4)
    assert mean.ratio == pytest.approx(1 + sum(others) / len(others))


@pytest.mark.parametrize(("seed", "heads"), [(1, 2), (9, 2), (1, 8)])
def test_healthy_dropout_of_a_narrow_model_is_accepted(seed, heads):
    """Some of its tokens lose all anchors of one sign; some heads of two elements have only anchors."""
    spec = spec_of({"model": {"dropout": 0.3, "heads": heads}, "training": {"seed": seed}})
    vocabulary = readable_vocabulary(spec, 2_000)
    assert vocabulary is not None
    stores = small_store(), small_store(9, seed=1)
    found = known_dropout(assemble(spec, this_rank(), vocabulary, *stores), vocabulary)
    assert [d.where for d in judge_dropout(found, 0.3) if not d.holds] == []


def test_a_validation_that_reads_one_shard_twice_shows(monkeypatch):
    real = evaluation.evaluation_batches

    def twice(store):
        return real(PairStore(store.manifest, [store.batches[0]] * 2))

    monkeypatch.setattr(evaluation, "evaluation_batches", twice)
    _, (found,), _ = recorded(spec_of({"training": {"steps": 3}}))
    seen = found.after_resuming.validation
    assert abs(seen.loss / seen.expected_loss - 1) > 1e-3


@pytest.mark.parametrize("pairs", [1, 3])
def test_a_tiny_validation_set_is_validated(pairs, tmp_path):
    stores = small_store(), small_store(pairs, seed=1)
    spec = spec_of({"training": {"steps": 3}})
    found = record(spec, this_rank(), stores, tmp_path, save_weights=True).trajectory
    seen = found.after_resuming.validation
    assert seen.loss == pytest.approx(seen.expected_loss, rel=1e-5)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_study_of_a_single_step_has_a_short_run(steps):
    late = {"schedule": {"kind": "constant", "peak": 3e-3}, "steps": steps}
    _, (found,), _ = recorded(spec_of({"training": {"steps": 3}}, WIDE), dropout=0.2, late=late)
    assert found.after_resuming is not None
    assert len(found.after_resuming.points) == steps
    assert found.dropout is not None
    assert all((place.steps.of > 0) == (steps > 1) for place in found.dropout)
