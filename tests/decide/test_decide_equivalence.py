"""Certificates of healthy trainings, and planted faults that must cost a training its certificate."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis_builders import certificate as certificate_of
from analysis_builders import seed_trajectory, trajectory
from safetensors.numpy import save_file
from scipy import stats

from schemas.config.measurement import Bitwise, Statistical, Tolerance
from schemas.errors import ConfigError
from schemas.results import Certificate, Deviation, SeedTrajectory, Trajectory
from schemas.results.certificates import (
    Agreement,
    CheckedPoint,
    CheckedValidation,
    Checks,
    CourseFloor,
    DecodedTokens,
    DropoutMoments,
    DropoutPlace,
    TensorDistance,
)
from tests.orders import run_job
from tests.records import record
from transformer_core.certify.bounds import Weights
from transformer_core.certify.final_losses import LEVEL, compare_final_losses
from transformer_core.certify.judge import certify

LOSSES = [8.0, 7.8, 7.5, 7.1, 6.8, 6.6]
NORMS = [3.0, 2.5, 2.0, 1.5, 1.2, 1.0]
INITIAL = {"layer.weight": np.zeros((2, 2)), "layer.bias": np.zeros(2), "key.bias": np.zeros(2)}
FINAL = {"layer.weight": np.ones((2, 2)), "layer.bias": np.full(2, 0.1), "key.bias": np.ones(2)}

FLOOR = CourseFloor(
    loss=1e-6, grad_norm=1e-5, weights={"layer.weight": 4e-4, "layer.bias": 4e-4, "key.bias": 1.4}
)

BITWISE = Bitwise(kind="bitwise")
TOLERANCE = Tolerance(kind="tolerance")
STATISTICAL = Statistical(kind="statistical")


def tensor(name: str = "layer.weight", step: int = 1, **changes: Any) -> TensorDistance:
    """A tensor without any error, except for ``changes``."""
    right = dict.fromkeys(("error", "rounding"), 0.0) | dict.fromkeys(
        ("ratio", "cosine", "size"), 1.0
    )
    return TensorDistance(tensor=name, step=step, **(right | changes))


def point(**changes: float) -> CheckedPoint:
    right = {"loss": 8.0, "expected_loss": 8.0, "rounding": 0.0, "norm": 3.0, "expected_norm": 3.0}
    return CheckedPoint(step=1, **(right | changes))


def validation(**changes: Any) -> CheckedValidation:
    right = {"loss": 8.0, "expected_loss": 8.0, "rounding": 0.0, "modes_changed": 0}
    return CheckedValidation.model_validate(right | changes)


def checks(**changes: Any) -> Checks:
    tensors = [tensor(), tensor("layer.bias")]
    right = {"points": [point()], "gradients": tensors, "updates": tensors}
    return Checks(**(right | changes))


def seed(number: int = 1, **changes: Any) -> SeedTrajectory:
    losses = [loss + 0.1 * number for loss in LOSSES]
    right = {"losses": losses, "grad_norms": NORMS, "floor": FLOOR, "checks": checks()}
    return seed_trajectory(number, **(right | changes))


SEEDS = [seed(number) for number in (1, 2, 3)]
REFERENCE = trajectory("reference", SEEDS)


def verdict(
    equivalence: Any,
    run: Trajectory | SeedTrajectory,
    reference: Trajectory = REFERENCE,
    **weights: Any,
) -> Certificate:
    if isinstance(run, SeedTrajectory):
        run = trajectory("run", [run, seed(2), seed(3)])
    trained = Weights(run=FINAL | weights, reference=FINAL, initial=INITIAL)
    return certify(equivalence, run, reference, trained)


def failed(certificate: Certificate) -> list[str]:
    return [d.quantity for d in certificate.deviations if not d.holds]


@pytest.mark.parametrize("equivalence", [BITWISE, TOLERANCE, STATISTICAL])
def test_equal_numbers_are_equivalent_in_every_class(equivalence):
    certificate = verdict(equivalence, seed())
    assert certificate.status == "equivalent"
    assert {d.measured for d in certificate.deviations} == {0.0}
    assert "equal" in certificate.reason
    assert certificate.reference == "reference"
    assert certificate.seeds == ([1, 2, 3] if equivalence is STATISTICAL else [1])
    assert certificate.steps == 6
    assert certificate.power == (1.0 if equivalence is STATISTICAL else None)


def test_rounding_is_within_tolerance_but_not_bitwise():
    run = seed(
        losses=[loss * (1 + 1e-6) for loss in seed().losses],
        grad_norms=[norm * (1 - 1e-5) for norm in NORMS],
        replica_differences=[0.0] * 6,
    )
    close = {"layer.weight": FINAL["layer.weight"] * 1.001}
    certificate = verdict(TOLERANCE, run, **close)
    assert certificate.status == "equivalent"
    measured = {d.quantity: d.measured for d in certificate.deviations}
    assert measured["loss"] == pytest.approx(1e-6, rel=1e-3)
    assert measured["grad_norm"] == pytest.approx(1e-5, rel=1e-3)
    assert measured["weights"] == pytest.approx(1e-3)
    bitwise = verdict(BITWISE, run, **close)
    assert failed(bitwise) == ["loss", "grad_norm", "weights"]
    assert "floor" not in bitwise.reason
    far = verdict(TOLERANCE, seed(), **{"layer.bias": FINAL["layer.bias"] * 1.03})
    assert (far.status, failed(far)) == ("not_equivalent", ["weights"])
    assert "layer.bias" in far.reason


def test_biases_of_keys_may_differ_in_the_tolerance_class_only():
    other = {"key.bias": -FINAL["key.bias"]}
    certificate = verdict(TOLERANCE, seed(), **other)
    assert (certificate.status, certificate.left_out) == ("equivalent", ["key.bias"])
    assert failed(verdict(BITWISE, seed(), **other)) == ["weights"]


EVERY = (BITWISE, TOLERANCE, STATISTICAL)
STILL = tensor("layer.bias", step=4, error=1.0, ratio=0.0, cosine=0.0)
HALF = [tensor(error=0.5, ratio=0.5, rounding=0.01), tensor("layer.bias", rounding=0.01)]
ONCE = [*seed().losses[:-1], seed().losses[-1] * 1.01]
SHORTER = {"losses": LOSSES[:3], "grad_norms": NORMS[:3]}
LATER = point(loss=8.1).model_copy(update={"step": 2})
LOST_PREFIX = DecodedTokens(error=0.03, rounding=0.005)
ROUNDED = [tensor(error=0.03, ratio=1.005, rounding=0.01)]
TURNED = [tensor(error=0.05, ratio=1.005, rounding=0.01)]
HIDDEN = [tensor(rounding=0.2)]
GONE = [tensor(), tensor("gone", error=1.0, ratio=0.0, size=0.0)]
TINY = [tensor(size=1e-9), tensor("layer.bias", error=0.1, size=1e-9)]
LUCKY = [
    *(tensor(str(n), rounding=0.01) for n in range(5)),
    tensor("lucky", error=0.03, rounding=0.0001),
]


@pytest.mark.parametrize(
    ("failing", "words", "classes", "found"),
    [
        ("loss", "off by 5.0e-01 (step 1)", [TOLERANCE], {"losses": [x / 2 for x in ONCE]}),
        ("loss", "(step 6)", [TOLERANCE], {"losses": ONCE}),
        ("grad_norm", "step 1", [TOLERANCE], {"grad_norms": [norm / 2 for norm in NORMS]}),
        ("replicas", "step 3", EVERY, {"replica_differences": [0.0, 0.0, 1e-9, 0.0, 0.0, 0.0]}),
        ("update update_ratio", "(layer.bias, step 4)", EVERY, {"updates": [tensor(), STILL]}),
        ("gradient gradient_ratio", "layer.weight", EVERY, {"gradients": HALF}),
        ("point_loss", "", [STATISTICAL], {"points": [point(loss=8.004, rounding=1e-5)]}),
        ("point_loss", "(step 2)", [TOLERANCE], {"points": [point(), LATER]}),
        ("point_norm", "", [STATISTICAL], {"points": [point(norm=3.1)]}),
        ("no_gradient", "layer.bias", EVERY, {"without_gradient": ["layer.bias"]}),
        ("decoding", "", [STATISTICAL, TOLERANCE], {"decoding": LOST_PREFIX}),
        ("validation", "", [TOLERANCE], {"validation": validation(loss=8.002)}),
        ("validation", "", [TOLERANCE], {"validation": validation(modes_changed=1)}),
        # A hook that holds gradients back leaves no losses to compare at points.
        ("validation", "", [STATISTICAL], {"points": [], "validation": validation(loss=8.4)}),
        # The error of the format is allowed if the class allows the format.
        ("gradient gradient_ratio", "", [TOLERANCE], {"gradients": ROUNDED}),
        ("gradient", "", [STATISTICAL], {"gradients": TURNED}),
        ("gradient gradient_ratio", "", [TOLERANCE], {"gradients": GONE}),
        ("gradient", "", [TOLERANCE], {"gradients": TINY}),
        ("grad_norm", "", [TOLERANCE], {"grad_norms": [None, *NORMS[1:]]}),
        ("", "starts from different weights", EVERY, {"initial_sha256": "1" * 64}),
        ("", "different number of steps", [TOLERANCE], SHORTER),
    ],
)
def test_planted_fault(failing, words, classes, found):
    of_seed = found.keys() <= SeedTrajectory.model_fields.keys()
    run = seed(**(found if of_seed else {"checks": checks(**found)}))
    for equivalence in classes:
        certificate = verdict(equivalence, run)
        assert certificate.status == "not_equivalent"
        assert failed(certificate) == failing.split()
        assert words in certificate.reason


@pytest.mark.parametrize(
    ("equivalence", "found", "status", "words"),
    [
        (STATISTICAL, {"decoding": DecodedTokens(error=0.018, rounding=0.005)}, "equivalent", ""),
        (STATISTICAL, {"validation": validation()}, "equivalent", ""),
        (STATISTICAL, {"gradients": ROUNDED}, "equivalent", ""),
        # If rounding errors are small by luck, the usual floor counts.
        (STATISTICAL, {"gradients": LUCKY}, "equivalent", ""),
        # A ReLU is on the other side of 0.
        (TOLERANCE, {"gradients": [tensor(error=0.02, kinks=0.025)]}, "equivalent", ""),
        # Nothing was compared, or rounding could hide a missing update.
        (TOLERANCE, None, "inconclusive", ""),
        (TOLERANCE, {"gradients": [], "points": []}, "inconclusive", ""),
        (
            STATISTICAL,
            {"gradients": [tensor(rounding=0.6)]},
            "inconclusive",
            "no step had a gradient",
        ),
        (TOLERANCE, {"updates": HIDDEN}, "inconclusive", "updates of layer.weight are too small"),
    ],
)
def test_rounding_explains_some_differences_and_hides_others(equivalence, found, status, words):
    certificate = verdict(equivalence, seed(checks=found and checks(**found)))
    assert certificate.status == status
    assert words in certificate.reason


ONE_OFF = [seed(1), seed(2), seed(3, losses=[8.0, 7.9, 7.9, 7.9, 7.9, 7.9])]
FLAT = [seed(n, losses=[8.0, 7.99, 7.99, 7.98, 7.98, 7.98]) for n in (1, 2, 3)]
BIASED = [seed(n, losses=[loss * 1.01 for loss in seed(n).losses]) for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("seeds", "reference", "margin", "status", "words"),
    [
        (ONE_OFF, SEEDS, 0.005, "inconclusive", "more seeds are needed"),
        (FLAT, FLAT, 0.005, "inconclusive", "training of more steps is needed"),
        (BIASED, SEEDS, 0.005, "not_equivalent", "+1.0e-02 to +1.0e-02"),
        (BIASED, SEEDS, 0.02, "equivalent", ""),
    ],
    ids=["one seed is off", "losses hardly fall", "all seeds are off", "a wider margin"],
)
def test_final_losses_over_seeds(seeds, reference, margin, status, words):
    equivalence = Statistical(kind="statistical", loss=margin)
    found = verdict(equivalence, trajectory("run", seeds), trajectory("reference", reference))
    assert found.status == status
    assert words in found.reason
    assert set(failed(found)) <= {"final_loss"}


def test_a_statistical_certificate_states_its_power():
    reference = [[8.0, 6.0, 6.0], [8.0, 6.0, 6.0], [8.0, 6.0, 6.0]]
    noisy = [[8.0, 6.0 * f, 6.0 * f] for f in (0.999, 1.0, 1.001)]
    outcome = compare_final_losses(noisy, reference, 0.005)
    error = 0.001 / 3**0.5
    # Simulate how often trainings that are 1 % off, with the same noise, are refused.
    random = np.random.default_rng(0)
    off = 0.01 + 0.001 * random.standard_normal((20_000, 3))
    errors = off.std(1, ddof=1) / 3**0.5
    refused = (off.mean(1) - stats.t.ppf(1 - LEVEL, 2) * errors > 0.005).mean()
    assert outcome.power == pytest.approx(refused, abs=0.02)
    assert outcome.high == pytest.approx(stats.t.ppf(1 - LEVEL, 2) * error)
    assert f"with probability {outcome.power:.2f}" in str(outcome)
    steady = [[8.0, 6.0 * f, 6.0 * f] for f in (0.9997, 1.0, 1.0003)]
    assert compare_final_losses(steady, reference, 0.005).undecided == []
    wider = [[8.0, 6.0 * f, 6.0 * f] for f in (0.997, 1.0, 1.003)]
    assert "to find 1.0 %" in compare_final_losses(wider, reference, 0.005).undecided[0]


@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_the_power_is_that_of_scipy_at_any_error(count):
    losses = [[8.0, 6.0]] * count
    for center in (*np.geomspace(0.1, 9e5, 20), *np.linspace(44, 52, 100)):
        error = 0.005 / center
        one_off = [[8.0, 6.0 * (1 + count * error)], *losses[1:]]
        power = stats.nct.sf(stats.t.ppf(1 - LEVEL, count - 1), count - 1, center)
        assert compare_final_losses(one_off, losses, 0.005).power == pytest.approx(power, abs=1e-9)


def test_a_bound_in_32_bits_follows_from_the_floor_and_its_ceiling():
    for error, floor, bound in ((5e-5, 1e-5, 4e-5), (3e-3, 1e-2, 2e-3), (1e-5, 1e-9, 4e-5)):
        found = verdict(
            TOLERANCE, seed(checks=checks(gradients=[tensor(error=error, rounding=floor)]))
        )
        measured = next(d for d in found.deviations if d.quantity == "gradient")
        assert measured.bound == pytest.approx(bound)
        assert measured.floor == floor
        assert measured.holds == (error <= bound)
    assert "with a floor of 1.0e-09" in found.reason


@pytest.mark.parametrize(("floor", "off", "holds"), [(9e-4, 1.5e-3, True), (2e-4, 1.5e-3, False)])
def test_a_training_may_deviate_as_far_as_the_reference_does_from_itself(floor, off, holds):
    """Even beyond 0.001, the ceiling of gradient norms."""
    unstable = FLOOR.model_copy(update={"grad_norm": floor})
    seeds = [seed(number, floor=unstable) for number in (1, 2, 3)]
    run = seed(grad_norms=[NORMS[0] * (1 + off), *NORMS[1:]])
    found = verdict(TOLERANCE, run, trajectory("reference", seeds))
    assert failed(found) == ([] if holds else ["grad_norm"])


def test_a_small_error_beyond_its_bound_shows_beside_a_larger_one_within():
    noisy = tensor("noisy", error=0.0015, rounding=0.001)
    for error, floor, found in ((0.0, 0.001, []), (1e-4, 0.0, ["gradient"])):
        gradients = [tensor(), tensor("layer.bias", error=error), noisy]
        certificate = verdict(TOLERANCE, seed(checks=checks(gradients=gradients)))
        assert failed(certificate) == found
        assert [d.floor for d in certificate.deviations if d.quantity == "gradient"] == [floor]


def test_small_weights_beyond_their_bound_show_beside_larger_ones_within():
    unstable = FLOOR.model_copy(update={"weights": FLOOR.weights | {"layer.weight": 0.01}})
    seeds = [seed(number, floor=unstable) for number in (1, 2, 3)]
    off = {name: FINAL[name] * by for name, by in (("layer.weight", 1.045), ("layer.bias", 1.042))}
    found = verdict(TOLERANCE, seed(), trajectory("reference", seeds), **off)
    assert failed(found) == ["weights"]
    assert "layer.bias" in found.reason


def test_a_tensor_that_rounding_alone_decides_is_left_out():
    noise = tensor("noise", error=3e5, ratio=3e5, size=1e-12, rounding=0.4)
    found = verdict(TOLERANCE, seed(checks=checks(gradients=[tensor(), noise])))
    assert (found.status, found.left_out) == ("equivalent", ["key.bias", "noise"])


@pytest.mark.parametrize("changes", [{"error": 0.02}, {"ratio": 1.02}])
def test_planted_fault_an_error_that_accumulates_over_the_steps(changes):
    rounded = [tensor(error=0.02, ratio=1.004, rounding=0.01)]
    mean = tensor(rounding=0.004, along=0.001, **changes)
    assert verdict(STATISTICAL, seed(checks=checks(gradients=rounded))).status == "equivalent"
    run = seed(checks=checks(gradients=rounded, means=[mean]))
    assert failed(verdict(STATISTICAL, run))[0].startswith("gradient_mean")


def place(**changes: Any) -> DropoutPlace:
    """A dropout place with the right share, whose masks agree only by chance."""
    chance = dict.fromkeys(("steps", "rows", "layers"), Agreement(same=680, of=1000))
    right = {"place": "decoder.0.feed_forward", "dropped": 404, "of": 2000, "factor": 1.25}
    return record(DropoutPlace, **right | chance | {"dropped_in_evaluation": 0} | changes)


ALIKE = Agreement(same=1000, of=1000)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dropped": 0}, "0.000 dropped"),
        ({"dropped": 300}, "0.150 dropped"),
        ({"factor": 1.0}, "kept elements scaled by 1.000"),
        ({"dropped_in_evaluation": 3}, "3 dropped in evaluation"),
        ({"steps": ALIKE}, "masks of steps"),
        ({"rows": ALIKE}, "masks of rows"),
        ({"tokens": ALIKE}, "masks of tokens"),
        ({"elements": ALIKE}, "masks of elements"),
        ({"layers": ALIKE}, "masks of layers"),
        ({"ranks": ALIKE}, "masks of ranks"),
        ({"dropped": 0, "of": 0}, "nothing passed"),
    ],
)
def test_planted_fault_dropout(changes, words):
    known = {"dropout_probability": 0.2}
    healthy = verdict(TOLERANCE, seed(dropout=[place(), place()], **known))
    assert healthy.status == "equivalent", healthy.reason
    certificate = verdict(TOLERANCE, seed(dropout=[place(), place(**changes)], **known))
    assert failed(certificate) == ["dropout"]
    assert words in certificate.reason


def test_only_numbers_of_few_bits_may_bend_the_slope_with_dropout():
    losses = [4.0 + 0.1 * (-1) ** n + 0.001 * n for n in range(24)]
    right, bent = (
        DropoutMoments(losses=losses, grad_norms=[1.0, 1.1], slope=slope) for slope in (1.0, 0.95)
    )
    reference = trajectory("reference", [seed(n, moments=right) for n in (1, 2, 3)])
    assert failed(verdict(TOLERANCE, seed(moments=bent), reference)) == ["dropout_slope"]
    assert failed(verdict(STATISTICAL, seed(moments=bent), reference)) == []
    # Those of one side alone say nothing.
    assert failed(verdict(TOLERANCE, seed(), reference)) == []


def test_an_overflow_in_both_trainings_is_no_difference():
    overflow = seed(grad_norms=[None, *NORMS[1:]])
    both = trajectory("reference", [overflow])
    assert verdict(TOLERANCE, overflow, both).status == "equivalent"


def test_a_run_that_failed_passes_its_status_on():
    """If the reference failed instead, the certificate has the status ``failed``."""
    run, reference = (
        trajectory(name, [], status="oom", reason="because") for name in ("run", "reference")
    )
    certificate = verdict(TOLERANCE, run)
    assert (certificate.status, certificate.reason) == ("oom", "because")
    certificate = verdict(TOLERANCE, seed(), reference)
    assert certificate.status == "failed"
    assert "reference, with which it is compared, ended oom: because" in certificate.reason


def test_seeds_that_do_not_match_raise():
    with pytest.raises(ConfigError, match="run both again"):
        verdict(STATISTICAL, trajectory("run", [seed(1), seed(2), seed(4)]))
    with pytest.raises(
        ConfigError, match=r"(?s)trajectories of run and reference: seeds = .*do not have 3 seeds"
    ):
        verdict(STATISTICAL, trajectory("run", [seed(1)]))


def test_the_interval_is_that_of_a_paired_t_test():
    random = np.random.default_rng(3)
    reference = 7 + random.random((5, 9))
    run = reference * (1 + 0.002 * random.standard_normal((5, 9)))
    mine, theirs = run[:, -3:].mean(1), reference[:, -3:].mean(1)
    # Each of two looks may be wrong once in forty times, on either side.
    expected = stats.ttest_1samp((mine - theirs) / theirs, 0).confidence_interval(0.95)
    found = compare_final_losses(run.tolist(), reference.tolist(), 0.005)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def write(folder: Path, run: Trajectory) -> Path:
    folder.mkdir()
    (folder / "trajectory.json").write_text(run.model_dump_json())
    save_file(FINAL, folder / "final.safetensors")
    save_file(INITIAL, folder / "initial.safetensors")
    return folder / "trajectory.json"


def test_the_job_writes_a_certificate_or_says_what_is_missing(tmp_path, capsys):
    short_run = write(tmp_path / "run", trajectory("ddp", SEEDS))
    reference = write(tmp_path / "reference", REFERENCE)
    output = tmp_path / "ddp.json"
    job = partial(run_job, "certify", variant="ddp", output=output)
    assert job(equivalence="tolerance", short_run=short_run, reference=reference) == 0
    found = Certificate.model_validate_json(output.read_text())
    assert (found.status, found.equivalence) == ("equivalent", TOLERANCE)

    assert job(equivalence={"kind": "different", "reason": "Another rule."}) == 0
    found = Certificate.model_validate_json(output.read_text())
    said = (found.status, found.reason, found.reference)
    assert said == ("different", "Another rule. Its own steps were not checked.", None)

    assert job(equivalence="tolerance", short_run=short_run) == 1
    assert "reference" in capsys.readouterr().err


def test_the_table_gives_the_nearest_bound_or_the_reason_of_every_variant(tmp_path):
    near = {"loss": (2e-5, 1e-4, "step 3"), "update": (9e-4, 1e-3, "output.weight, step 2")}
    deviations = [
        Deviation(quantity=quantity, measured=measured, bound=bound, where=where)
        for quantity, (measured, bound, where) in near.items()
    ]
    found = [
        certificate_of("ddp").model_copy(update={"deviations": deviations}),
        certificate_of("sgd", "different").model_copy(update={"reason": "another | rule\nhere"}),
    ]
    files = [tmp_path / f"{each.variant}.json" for each in found]
    for file, each in zip(files, found, strict=True):
        file.write_text(each.model_dump_json())
    assert run_job("certificates", certificates=files, output=tmp_path / "all.md") == 0
    lines = (tmp_path / "all.md").read_text().splitlines()
    assert lines[0] == "1 equivalent, 1 different."
    nearest = "update of a tensor, 90 % (output.weight, step 2)"
    assert f"| ddp | tolerance | equivalent | {nearest} |" in lines
    assert lines[-1] == "| sgd | tolerance | different | another \\| rule<br>here |"
