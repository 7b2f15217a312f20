"""Floors: how far rounding alone moves a compared quantity."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from schemas.base import MOST_SECONDS
from schemas.config.measurement import Statistical, Tolerance
from schemas.config.parallel import Machine
from schemas.results.certificates import CheckedPoint, Checks
from tests.attacks.planted.changes import BF16
from tests.attacks.short_trainings import own_certificate, recorded, spec_of
from tests.measure.short_runs import this_rank
from tests.training.small_training import small_spec, store_of
from transformer_core.certify.bounds import judge
from transformer_core.certify.checker import _near_a_bound, moved, norm_in_32_bits
from transformer_core.certify.floors import of_lengths, of_loss
from transformer_core.certify.plain_models import smoothed_loss, whole_smoothed_loss
from transformer_core.certify.replay import _between_elements
from transformer_core.certify.short_run_worker import patient, record
from transformer_core.certify.tensors import distance
from transformer_core.data.batching.feeding import GlobalBatch
from transformer_core.training import loop

RIGHT = torch.full((4, 5), 2.0, dtype=torch.float64)


def test_errors_that_cancel_in_a_loss_do_not_lower_its_floor() -> None:
    """Half of the labels are too high, half too low: their sum is right by luck."""
    apart = torch.tensor([[1e-3, -1e-3, 1e-3, -1e-3, 0.0]] * 4, dtype=torch.float64)
    assert float(apart.sum()) == 0
    assert of_loss(RIGHT + apart, RIGHT) == pytest.approx(1e-3 * 4 / 40)
    by_sentence = torch.tensor([[1e-3], [-1e-3]] * 2, dtype=torch.float64).expand(4, 5)
    assert of_loss(RIGHT + by_sentence, RIGHT) == pytest.approx(1e-3 * 10 / 40)
    # Errors of one sign add up.
    assert of_loss(RIGHT + 1e-3, RIGHT) == pytest.approx(1e-3 / 2)
    assert of_loss(RIGHT - 1e-3, RIGHT) == pytest.approx(1e-3 / 2)


def test_the_floor_of_a_norm_averages_over_all_steps_of_its_tensor() -> None:
    found = of_lengths([("a", 3.0), ("b", 1.0), ("a", 4.0), ("a", 0.0)])
    assert found == pytest.approx({"a": (25 / 3) ** 0.5, "b": 1.0})


@pytest.mark.parametrize(
    ("elements", "along", "holds"), [(400, 0.01, True), (400, 0.0, False), (4, 0.0, True)]
)
def test_a_norm_may_be_off_by_the_rounding_error_along_its_gradient(
    elements: int, along: float, holds: bool
) -> None:
    longer = torch.full((elements,), 1.03, dtype=torch.float64)
    seen = distance("w", 1, longer, torch.ones(elements, dtype=torch.float64), 0.01)
    seen = seen.model_copy(update={"along": along})
    checks = Checks(points=[], gradients=[seen], updates=[])
    found = judge(Statistical(kind="statistical"), checks).deviations
    (ratio,) = [d for d in found if d.quantity == "gradient_ratio"]
    assert ratio.holds == holds


@pytest.mark.parametrize(("off", "holds"), [(3e-3, True), (3e-2, False)])
def test_a_norm_may_be_as_far_off_as_torchs_kernel(off: float, holds: bool) -> None:
    """On a CPU it is 2e-3 off for a matrix with a vocabulary of GPT-2's size."""
    point = CheckedPoint(
        step=1,
        loss=8.0,
        expected_loss=8.0,
        rounding=0.0,
        norm=3.0 * (1 - off),
        expected_norm=3.0,
        norm_rounding=2e-3,
    )
    checks = Checks(points=[point], gradients=[], updates=[])
    found = judge(Tolerance(kind="tolerance"), checks).deviations
    assert next(d for d in found if d.quantity == "point_norm").holds == holds


@pytest.mark.slow
def test_a_large_vocabulary_costs_no_healthy_variant_its_certificate(tmp_path: Path) -> None:
    """Sums over it round so much in 32 bits that the published step lost its certificate on real text."""
    vocabulary, pairs = 20_000, 16
    ids = np.random.default_rng(0).integers(3, vocabulary, (pairs, 6)).tolist()
    sides = {side: pa.array(ids, pa.large_list(pa.uint16())) for side in ("source", "target")}
    stores = (store_of(pairs, sides, vocabulary),) * 2
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 256, "dropout": 0.0}
    training = {"steps": 2, "loss": {"kind": "kl_divergence"}}
    spec = small_spec(model=sizes, training=training)
    found = record(spec, this_rank(), stores, tmp_path, save_weights=True).trajectory.checks
    assert found is not None
    assert max(abs(p.norm / p.expected_norm - 1) for p in found.points) > 2e-4
    assert [
        d for d in judge(Statistical(kind="statistical"), found).deviations if not d.holds
    ] == []


def test_a_tensor_may_have_no_gradient_where_the_plain_function_has_none() -> None:
    """In batches of one pair, a single ReLU is closed at some steps and open at others."""
    model = {"d_model": 8, "d_ff": 1, "heads": 1, "encoder_layers": 1, "decoder_layers": 1}
    training = {"seed": 536, "label_smoothing": 0.0, "schedule": {"peak": 0.01}}
    spec = spec_of({"model": model, "training": training, "batching": {"pairs": 1}})
    _, (found,), _ = recorded(spec)
    assert found.checks is not None
    assert found.checks.without_gradient == []
    of_inner = [
        g for g in found.checks.gradients if g.tensor == "encoder.0.feed_forward.inner.bias"
    ]
    assert {g.step for g in of_inner if not g.size} == {1}


def test_a_wrong_scale_of_an_epochs_last_batch_shows_under_bf16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is smaller than the others, so most gradients of its tensors are rounding."""
    real = loop.optimizer_step

    def step(trainer: Any, batch: GlobalBatch, rate: float) -> Any:
        divisor = batch.target_tokens if batch.pairs == 8 else batch.target_tokens // 2
        return real(trainer, replace(batch, target_tokens=divisor), rate)

    monkeypatch.setattr(loop, "optimizer_step", step)
    found = own_certificate(recorded(spec_of(BF16)))
    wrong = [(d.quantity, d.where) for d in found.deviations if not d.holds]
    assert wrong == [("point_norm", "step 5, after resuming")]


def test_norms_in_32_bits_are_those_of_the_kernel() -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = {name: torch.randn(4000, 64, generator=generator).double() for name in "ab"}
    exact = float(sum(g.square().sum() for g in gradients.values())) ** 0.5
    found = norm_in_32_bits(gradients)
    assert found == pytest.approx(exact, rel=1e-3)
    assert found != exact


@pytest.mark.parametrize("published", [False, True])
def test_a_loss_over_the_whole_vocabulary_is_the_same_function(published: bool) -> None:
    torch.manual_seed(0)
    labels = torch.tensor([[3, 9, 1], [4, 0, 0]])
    losses, gradients = [], []
    for loss in (smoothed_loss, whole_smoothed_loss):
        logits = torch.linspace(-2, 3, 66).double().sin().view(2, 3, 11).requires_grad_()
        losses.append(loss(logits, labels, 0.1, published))
        losses[-1].sum().backward()
        gradients.append(logits.grad)
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients)


def test_weights_move_by_at_most_the_given_share() -> None:
    before = {"w": torch.linspace(-2, 2, 101), "count": torch.tensor([3])}
    after = moved(before, 0.01)
    apart = (after["w"] - before["w"]).abs()
    assert bool((apart <= 0.01001 * before["w"].abs()).all())
    assert float(apart.max()) > 0.01
    assert torch.equal(after["count"], before["count"])


def test_in_32_bits_floors_are_measured_only_if_a_deviation_needs_them() -> None:
    for change, measured in (({}, False), ({"training": {"precision": {"kind": "bf16"}}}, True)):
        _, (found,), _ = recorded(spec_of(change, {"training": {"steps": 3}}))
        assert found.checks is not None
        assert all((g.rounding > 0) == measured for g in found.checks.gradients if g.size > 1e-4)


def test_elements_are_compared_at_the_distance_at_which_they_agree_most() -> None:
    mask = torch.rand(50, 24, generator=torch.Generator().manual_seed(0)) < 0.7
    mask[:, 5:] = mask[:, 5:] & ~mask[:, :-5] | (torch.rand(50, 19) < 0.1)
    mask[:, 3:] = torch.where(torch.rand(50, 21) < 0.8, mask[:, :-3], mask[:, 3:])
    same = {lag: int((mask[:, lag:] == mask[:, :-lag]).sum()) for lag in range(1, 22)}
    lag = max(same, key=lambda lag: same[lag] / (24 - lag))
    found = _between_elements(mask)
    assert found is not None
    assert (found.same, found.of) == (same[lag], 50 * (24 - lag))


@pytest.mark.parametrize("size", [1.0, 1e-30])
def test_distances_are_the_same_in_32_and_64_bits(size: float) -> None:
    """Even if squares underflow in 32 bits."""
    torch.manual_seed(0)
    right = size * torch.randn(300, 300)
    found = right * (1 + 1e-4 * torch.randn(300, 300)) + 1e-5 * right
    one, other = (
        distance("w", 1, found.to(bits), right.to(bits), 0.0)
        for bits in (torch.float32, torch.float64)
    )
    assert one.error == pytest.approx(other.error, rel=1e-4)
    assert one.ratio - 1 == pytest.approx(other.ratio - 1, rel=0.02)
    assert one.size == pytest.approx(other.size)


def test_tensors_that_rounding_decides_do_not_hide_another_near_its_bound() -> None:
    right = torch.ones(4, dtype=torch.float64)
    seen = distance("w", 1, 1.038 * right, right, 0.01)
    noise = [distance(f"noise {n}", 1, right, right, 0.9) for n in range(3)]
    assert _near_a_bound([seen, *noise], 0.25)
    assert not _near_a_bound(noise, 0.25)


def test_ranks_wait_longer_for_the_one_that_computes_in_64_bits() -> None:
    assert patient(Machine(timeout=600)).timeout == 6_000
    assert patient(Machine(timeout=MOST_SECONDS)).timeout == MOST_SECONDS
