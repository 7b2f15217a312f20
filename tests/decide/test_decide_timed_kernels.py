"""A timed step must have the kernels that were certified."""

from typing import Any

import numpy as np
import pytest
from analysis_builders import repeat, seed_trajectory, trajectory
from kernels_seen import KERNELS
from scipy import stats

from schemas.config.measurement import Tolerance
from schemas.results import Repeat, Trajectory
from schemas.results.certificates import Checks, DropoutMoments, TensorDistance
from schemas.results.runs import SpotCheck, StepKernels
from transformer_core.certify.bounds import Weights
from transformer_core.certify.dropout_bounds import ALLOWED, judge_moments
from transformer_core.certify.judge import certify
from transformer_core.certify.kernels import timed_otherwise

TENSOR = TensorDistance(
    tensor="layer.weight", step=1, error=0.0, ratio=1.0, cosine=1.0, size=1.0, rounding=0.0
)
CHECKS = Checks(points=[], gradients=[TENSOR], updates=[TENSOR])
NO_CHECKS = Checks(points=[], gradients=[], updates=[])


def timed(**changes: Any) -> Repeat:
    return repeat(1, [1.0]).model_copy(update={"kernels": KERNELS.model_copy(update=changes)})


def certified(kernels: StepKernels | None = KERNELS, as_timed: Checks | None = None) -> Trajectory:
    return trajectory("run", [seed_trajectory(as_timed=as_timed)], kernels=kernels)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        (
            {"operators": ["aten.addmm float32", "aten.bmm float32"]},
            ["timed only: aten.bmm float32", "certified only: aten._flash float32"],
        ),
        ({"threads": 1}, ["threads: 1 where timed, 2 where certified"]),
        ({"allocator": "x"}, ["the allocator: x where timed, glibc 2.36 where certified"]),
        ({"compiled": True}, ["compiled layers: True where timed, False where certified"]),
    ],
    ids=str,
)
def test_other_kernels_are_named(changes, said):
    assert timed_otherwise(timed(**changes), certified()) == said
    # Kernels are not always known: without warm-up none are recorded.
    assert timed_otherwise(timed(**changes), certified(kernels=None)) == []
    assert timed_otherwise(repeat(1, [1.0]), certified()) == []


@pytest.mark.parametrize(
    ("resumed_at", "said"), [([5], []), ([], ["certified only: aten._flash float32"])]
)
def test_a_resumed_step_need_not_make_the_state_of_the_first(resumed_at, said):
    fewer = timed(operators=["aten.addmm float32"]).model_copy(update={"resumed_at": resumed_at})
    assert timed_otherwise(fewer, certified()) == said
    others = timed(operators=["aten.bmm float32"]).model_copy(update={"resumed_at": [5]})
    assert timed_otherwise(others, certified()) == ["timed only: aten.bmm float32"]


def test_a_certificate_of_other_kernels_decides_nothing():
    tensors = {"layer.weight": np.ones(2)}
    weights = Weights(run=tensors, reference=tensors, initial={"layer.weight": np.zeros(2)})
    run = trajectory("run", [seed_trajectory(checks=CHECKS)], kernels=KERNELS)
    tolerance = Tolerance(kind="tolerance")
    assert certify(tolerance, run, run, weights, timed()).status == "equivalent"
    other = certify(tolerance, run, run, weights, timed(threads=1))
    assert other.status == "inconclusive"
    assert other.timed_otherwise == ["threads: 1 where timed, 2 where certified"]
    assert "timed differently than certified (threads: 1" in other.reason
    assert other.kernels == KERNELS
    ended = {"status": "diverged", "reason": "loss at step 9 is nan", "kernels": None}
    away = certify(tolerance, run, run, weights, timed().model_copy(update=ended))
    assert away.status == "inconclusive"
    assert away.reason == "its own training ended diverged: loss at step 9 is nan"


@pytest.mark.parametrize(("error", "status"), [(5e-4, "equivalent"), (5e-3, "not_equivalent")])
def test_a_wrong_update_of_the_timed_run_costs_the_certificate(error, status):
    tensors = {"layer.weight": np.ones(2)}
    weights = Weights(run=tensors, reference=tensors, initial={"layer.weight": np.zeros(2)})
    run = trajectory("run", [seed_trajectory(checks=CHECKS)], kernels=KERNELS)
    spot = {"step": 40, "skipped": False, "tensor": "w", "rate": 0, "clipping": 0, "replicas": 0}
    spots = [SpotCheck(**spot, update=error), SpotCheck(**spot | {"step": 7}, update=0)]
    checked = timed().model_copy(update={"spot_checks": spots})
    found = certify(Tolerance(kind="tolerance"), run, run, weights, checked)
    assert found.status == status
    (update,) = [d for d in found.deviations if d.quantity == "timed_update"]
    assert update.where == "step 40 of the timed run"


def test_deterministic_algorithms_are_covered_by_steps_without_them():
    strict = certified(KERNELS.model_copy(update={"deterministic": True}))
    assert timed_otherwise(timed(), strict) == [
        "deterministic algorithms: False where timed, True where certified"
    ]
    covered = certified(KERNELS.model_copy(update={"deterministic": True}), as_timed=NO_CHECKS)
    assert timed_otherwise(timed(), covered) == []
    (said,) = timed_otherwise(timed(threads=1), covered)
    assert said == "threads: 1 where timed, 2 where certified"


def test_another_version_of_a_package_is_named():
    run = timed()
    other = run.provenance.model_copy(
        update={"packages": run.provenance.packages | {"torch": "0.1"}}
    )
    for kernels in (KERNELS, None):
        found = run.model_copy(update={"provenance": other, "kernels": kernels})
        (said,) = timed_otherwise(found, certified())
        assert said.startswith("torch 0.1 where timed")


LOSSES = [4.0 + 0.1 * (-1) ** i + 0.001 * i for i in range(24)]
NORMS = [1.0, 1.02, 0.98, 1.01, 0.99, 1.03]


RIGHT = {"losses": LOSSES, "grad_norms": NORMS, "slope": 1.0}


@pytest.mark.parametrize(
    ("change", "reduced", "quantities"),
    [
        ({}, False, []),
        ({"losses": [x + 0.02 for x in LOSSES], "slope": 0.997}, False, []),
        ({"losses": [x + 0.5 for x in LOSSES]}, False, ["dropout_loss"]),
        ({"losses": [4.0 + (x - 4.0) * 9 for x in LOSSES]}, False, ["dropout_spread"]),
        ({"losses": [4.0 + i * 1e-9 for i in range(24)]}, False, ["dropout_spread"]),
        ({"grad_norms": [1.5 * n for n in NORMS]}, False, ["dropout_gradient"]),
        ({"grad_norms": []}, False, []),
        ({"grad_norms": [2.0]}, False, []),
        ({"losses": LOSSES[:2] * 12}, False, ["dropout_draws"]),
        ({"slope": 0.95}, False, ["dropout_slope"]),
        ({"slope": 0.95}, True, []),  # numbers of few bits may bend it more
        ({"slope": None}, False, []),
    ],
)
def test_moments(change, reduced, quantities):
    found = judge_moments(DropoutMoments(**RIGHT | change), DropoutMoments(**RIGHT), reduced)
    assert [deviation.quantity for deviation in found if not deviation.holds] == quantities


SAME = {"losses": [40.0, 40.00001] * 12, "grad_norms": [1.0] * 6, "slope": 1.0}


def test_means_and_spreads_are_those_of_welchs_and_the_f_test():
    once_in = 1e-5
    losses, norms = [*LOSSES[::2], 4.05], [1.1 * n for n in NORMS[1:]]
    mine = DropoutMoments(losses=losses, grad_norms=norms, slope=None)
    found = {d.quantity: d for d in judge_moments(mine, DropoutMoments(**RIGHT), False)}
    for name, ours, theirs in (
        ("dropout_loss", losses, LOSSES),
        ("dropout_gradient", norms, NORMS),
    ):
        welch = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(1 - once_in)
        reach = (welch.high - welch.low) / 2 / np.mean(theirs)
        assert found[name].bound == pytest.approx(ALLOWED + reach)
    largest = stats.f.isf(once_in / 2, len(losses) - 1, len(LOSSES) - 1) ** 0.5
    assert found["dropout_spread"].bound == pytest.approx(largest - 1)


@pytest.mark.parametrize(
    ("change", "optional", "quantities"),
    [
        ({}, True, []),
        ({"losses": [40.01] * 24}, True, []),  # rounded to 8 bits
        ({"losses": [10 * x for x in LOSSES]}, True, ["dropout_spread"]),
        ({}, False, ["dropout_draws"]),
    ],
)
def test_only_users_models_may_have_no_dropout(change, optional, quantities):
    reference = SAME | {"optional": optional}
    found = judge_moments(DropoutMoments(**SAME | change), DropoutMoments(**reference), False)
    assert [deviation.quantity for deviation in found if not deviation.holds] == quantities


@pytest.mark.parametrize(
    ("optional", "slope", "quantities"),
    [(True, 0.861, []), (True, 1.0, ["dropout_slope"]), (False, 0.861, ["dropout_slope"])],
)
def test_a_users_model_may_stop_gradients_as_in_the_reference(optional, slope, quantities):
    reference = DropoutMoments(**RIGHT | {"optional": optional, "slope": 0.86})
    found = judge_moments(DropoutMoments(**RIGHT | {"slope": slope}), reference, False)
    assert [deviation.quantity for deviation in found if not deviation.holds] == quantities
