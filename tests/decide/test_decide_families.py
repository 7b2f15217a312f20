"""Curves of families and their knees."""

from pathlib import Path

import pytest
from analysis_builders import manifest, repeat
from claim_builders import comparison, curves, ended, family, interval, run, write_study

from schemas.results import CertificateStatus, FamilyCurve
from transformer_core.decide.combine import combine
from transformer_core.decide.family_curves import all_reduces_per_step
from transformer_core.decide.verdicts import ONE_SESSION

SIZES = {value: f"s{value}" for value in (1, 2, 4, 8)}
Ends = tuple[float, float]


def curve(
    tmp_path: Path, ratios: list[Ends], certificates: dict[str, CertificateStatus] | None = None
) -> FamilyCurve:
    """The curve over four values; the first is the reference."""
    pairs = [
        comparison(name, "s1", *ends, peak_memory=(1.1, 1.1), traffic=(0.5, 0.5))
        for name, ends in zip(list(SIZES.values())[1:], ratios, strict=True)
    ]
    runs = [run(name, all_reduces=100 * value) for value, name in SIZES.items()]
    study = write_study(tmp_path, runs, pairs, certificates)
    return curves(study, {"sizes": family("s1", SIZES, unit="MiB")})["sizes"]


def test_a_curve_has_every_quantity_by_value(tmp_path):
    found = curve(tmp_path, [(1.2, 1.3), (1.4, 1.5), (1.4, 1.5)])
    assert [point.value for point in found.points] == [1, 2, 4, 8]
    assert [point.all_reduces for point in found.points] == [1, 2, 4, 8]
    first, second = found.points[:2]
    assert (first.throughput.low, first.throughput.high, first.verdict) == (1.0, 1.0, None)
    assert (second.throughput.low, second.verdict) == (1.2, "FASTER")
    assert (second.peak_memory.median, second.traffic.median) == (1.1, 0.5)


def test_a_reference_that_sends_nothing_has_no_ratio_of_bytes(tmp_path):
    first = curve(tmp_path, [(1.2, 1.3), (1.4, 1.5), (1.4, 1.5)]).points[0]
    assert first.traffic is None
    assert first.throughput.median == first.peak_memory.median == 1.0


@pytest.mark.parametrize(
    ("ratios", "best", "knee", "note"),
    [
        ([(1.2, 1.3), (1.4, 1.6), (1.45, 1.65)], 8, 4, "4 MiB is the smallest value not shown"),
        ([(1.2, 1.3), (1.3, 1.55), (1.5, 1.8)], 8, 4, "4 MiB is the smallest value not shown"),
        ([(1.2, 1.3), (1.4, 1.5), (1.6, 1.7)], 8, 8, "8 MiB is the best value, and every smaller"),
        ([(0.8, 0.9), (0.7, 0.8), (0.6, 0.7)], 1, 1, "1 MiB, the smallest value, is the best"),
        ([(0.9, 1.1), (0.95, 1.2), (0.9, 1.05)], 4, None, "No value is shown to be slower"),
        ([(0.9, 1.1), (0.95, 1.2), (0.7, 0.8)], 4, 1, "1 MiB is the smallest value not shown"),
        ([(1.4, 1.6), (1.2, 1.25), (1.45, 1.65)], 8, 2, "2 MiB is the smallest value not shown"),
    ],
)
def test_the_knee(tmp_path, ratios, best, knee, note):
    found = curve(tmp_path, ratios)
    assert (found.best, found.knee) == (best, knee)
    assert found.note.startswith(note)


def test_a_variant_that_trains_another_model_does_not_count_for_the_knee(tmp_path):
    ratios = [(1.2, 1.3), (1.4, 1.6), (2.0, 2.1)]
    assert curve(tmp_path, ratios).best == 8
    found = curve(tmp_path, ratios, {"s8": "not_equivalent"})
    assert (found.best, found.knee) == (4, 4)
    assert "has no certificate that it trains the same model" in found.points[3].reason
    assert curve(tmp_path, ratios, {"s8": "different"}).best == 8


def test_turns_that_computed_differently_than_certified_do_not_count_for_the_knee(tmp_path):
    pairs = [comparison("s2", "s1", 1.2, 1.3), comparison("s4", "s1", 2.0, 2.1)]
    otherwise = {"certificate": "inconclusive", "counts": False}
    pairs[1] = pairs[1].model_copy(update=otherwise)
    study = write_study(tmp_path, [run(name) for name in ("s1", "s2", "s4")], pairs)
    found = curves(study, {"sizes": family("s1", SIZES)})["sizes"]
    assert found.best == 2
    assert found.points[2].throughput == interval(2.0, 2.1)
    assert "was timed differently than certified" in found.points[2].reason


def test_a_single_session_decides_nothing(tmp_path):
    found = comparison("s2", "s1", 1.5, 1.6)
    once = found.effects[0].model_copy(update={"verdict": "UNDECIDED", "reason": ONE_SESSION})
    found = found.model_copy(update={"effects": [once, *found.effects[1:]]})
    study = write_study(tmp_path, [run("s1"), run("s2")], [found])
    seen = curves(study, {"sizes": family("s1", SIZES)})["sizes"]
    assert seen.points[1].throughput == interval(1.5, 1.6)
    assert (seen.points[1].counts, seen.points[1].reason) == (False, ONE_SESSION)
    assert (seen.best, seen.knee) == (1, None)


def test_all_reduces_are_counted_since_a_run_resumed():
    resumed = repeat(1, [], resumed_at=[60], communication={"all_reduces": 120})
    result = combine("single", [resumed], manifest())
    assert all_reduces_per_step(result) == 3


def test_members_with_their_own_references(tmp_path):
    names = ["sync2", "no_sync2", "sync4", "no_sync4"]
    pairs = [
        comparison("no_sync2", "sync2", 1.1, 1.2),
        comparison("no_sync4", "sync4", 1.3, 1.4),
        comparison("no_sync4", "sync2", 9.0, 9.1),
    ]
    study = write_study(tmp_path, [run(name) for name in names], pairs, {"sync4": "not_equivalent"})
    gain = family(None, {2: ("no_sync2", "sync2"), 4: ("no_sync4", "sync4")})
    found = curves(study, {"gain": gain})["gain"]
    assert [point.reference for point in found.points] == ["sync2", "sync4"]
    assert [p.throughput and p.throughput.high for p in found.points] == [1.2, 1.4]
    assert [point.counts for point in found.points] == [True, False]
    assert found.points[1].reason.startswith("sync4 has no certificate")


def test_a_study_with_fewer_than_two_members_has_no_curve(tmp_path):
    study = write_study(tmp_path, [run("s1"), run("other")])
    found = curves(study, {"sizes": family("s1", SIZES), "rest": family("s1", {1: "x", 2: "y"})})
    assert found["sizes"].points == []
    assert "only s1 of this family" in found["sizes"].note
    assert "add s2, s4, s8" in found["sizes"].note
    assert "runs none of this family" in found["rest"].note


def test_points_without_a_number_say_why(tmp_path):
    runs = [run("s1"), ended("s2", "oom", "9 GiB asked for"), run("s4"), run("s8")]
    study = write_study(tmp_path, runs, [comparison("s8", "s1", 1.5, 1.6)])
    found = curves(study, {"sizes": family("s1", SIZES)})["sizes"]
    reasons = [point.reason for point in found.points]
    assert reasons == ["", "ended oom: 9 GiB asked for", "was not compared with s1", ""]
    assert (found.best, found.knee) == (8, 8)
    assert found.note.endswith("; only 2 of 4 values could be compared")


def test_nothing_compared(tmp_path):
    runs = [ended(name, "unsupported", "needs CUDA") for name in SIZES.values()]
    found = curves(write_study(tmp_path, runs), {"sizes": family("s1", SIZES)})["sizes"]
    assert (found.best, found.knee) == (None, None)
    assert found.note == "Only 0 of 4 values could be compared"
