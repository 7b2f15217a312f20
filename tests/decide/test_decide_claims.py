"""Verdicts on claims: every one can be reached, and a planted false claim is refuted."""

import json
from pathlib import Path
from typing import Any

import pytest
from claim_builders import claim, comparison, ended, family, interval, judge, run, write_study

from schemas.results import ClaimResult, Effect
from tests.orders import run_job
from transformer_core.decide.verdicts import ONE_SESSION

FASTER = {"kind": "comparison", "variant": "fast", "reference": "single", "direction": "more"}
SLOW = FASTER | {"variant": "slow"}
NOISY = FASTER | {"variant": "noisy"}
LOST = FASTER | {"variant": "lost"}
LESS_TRAFFIC = FASTER | {"direction": "less", "quantity": "traffic"}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study with a faster, a slower, an equal, an undecided and a failing variant."""
    files = {
        "memory/fast.json": {
            "status": "ok",
            "ranks": [{"peak": 200}, {"peak": 100}, {"peak": 110}],
            "per_parameter": 18.0,
            "share": [0.7, 0.8],
            "rate": interval(3.0, 4.0).model_dump(),
            "nothing": None,
            "some": [1.0, None],
            "flag": True,
        },
        "memory/lost.json": {"status": "unsupported", "reason": "needs CUDA", "per_parameter": 1.0},
        "machine/roofline.json": {"bandwidth": 10.0},
    }
    return write_study(
        tmp_path_factory.mktemp("claims") / "results",
        [
            run("single"),
            run("fast", world_size=2),
            run("slow"),
            run("alike"),
            run("noisy"),
            run("below"),
            run("above"),
            ended("lost", "unsupported", "needs CUDA"),
        ],
        [
            comparison("fast", "single", 1.5, 1.7, traffic=(0.5, 0.5)),
            comparison("slow", "single", 0.6, 0.7),
            comparison("alike", "single", 0.995, 1.005),
            comparison("noisy", "single", 0.9, 1.1),
            comparison("below", "single", 0.9, 1.01),
            comparison("above", "single", 0.99, 1.1),
        ],
        files=files,
    )


def verdict(study: Path, *tests: dict[str, Any], **more: Any) -> ClaimResult:
    return judge(study, {"mine": claim(*tests, **more)})["mine"]


def measured(value: str, file: str = "memory/fast.json", **more: Any) -> dict[str, Any]:
    number = {"file": f"results/{file}", "value": value}
    return {"kind": "measurement", "what": "Bytes", "number": number} | more


def test_evidence_has_the_number_and_its_files(study):
    found = verdict(study, FASTER | {"at_most": 3})
    assert found.verdict == "REPRODUCED"
    (evidence,) = found.evidence
    assert evidence.outcome == "holds"
    assert evidence.number == interval(1.5, 1.7)
    assert evidence.files == ["results/comparisons.json"]
    assert evidence.variants == ["fast", "single"]
    assert evidence.expected == "more, at most 3"
    assert found.command.startswith("snakemake --cores all ")
    assert "claims.json" in found.command
    (evidence,) = verdict(study, FASTER | {"quantity": "peak_memory"}).evidence
    assert evidence.files == ["results/comparisons.json"], "that of turns, not of single runs"
    (evidence,) = verdict(study, LESS_TRAFFIC).evidence
    assert "results/runs/fast/metrics.json" in evidence.files
    (evidence,) = verdict(study, measured("rate", direction="more", than=2)).evidence
    assert evidence.expected == "more than 2"


def test_a_reference_without_traffic_gives_a_direction_but_no_size(tmp_path):
    counted = comparison("fast", "single", 1.5, 1.7)
    none = Effect(quantity="traffic", ratio=None, verdict="MORE", reason="the reference has none")
    counted = counted.model_copy(update={"effects": [*counted.effects[:2], none]})
    study = write_study(tmp_path, [run("single"), run("fast")], [counted])
    more = FASTER | {"quantity": "traffic"}
    assert verdict(study, more).verdict == "REPRODUCED"
    assert verdict(study, more | {"direction": "less"}).verdict == "REFUTED"
    assert verdict(study, more | {"at_least": 2}).verdict == "UNDECIDED"


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        # A slow-down is not faster, whatever else is claimed.
        ([FASTER, SLOW], "REFUTED"),
        # A bound that the data contradict
        ([measured("per_parameter", at_most=16)], "REFUTED"),
        ([measured("per_parameter", at_least=20)], "REFUTED"),
        # The right direction and another size
        ([FASTER | {"at_least": 2}], "PARTLY"),
        ([FASTER | {"at_most": 1.4}], "PARTLY"),
        ([FASTER | {"at_least": 2}, SLOW], "REFUTED"),
        # An undecided direction or size
        ([NOISY, FASTER], "UNDECIDED"),
        ([NOISY, FASTER | {"at_least": 2}], "UNDECIDED"),
        ([FASTER | {"at_least": 1.6}], "UNDECIDED"),
        # Other quantities than throughput
        ([LESS_TRAFFIC | {"at_least": 0.5, "at_most": 0.5}], "REPRODUCED"),
        ([FASTER | {"quantity": "traffic"}], "REFUTED"),
        # Results whose status is not that of a job
        ([measured("length(seeds)", "equivalence/fast.json", at_most=1)], "REPRODUCED"),
    ],
)
def test_verdicts(study, tests, expected):
    assert verdict(study, *tests).verdict == expected


@pytest.mark.parametrize(
    ("variant", "holding"),
    [
        ("fast", {"more", "not_less"}),
        ("slow", {"less", "not_more"}),
        ("alike", {"same", "not_more", "not_less"}),
        ("noisy", set()),
        # An interval that contains 1 and ends within the margin settles one side.
        ("below", {"not_more"}),
        ("above", {"not_less"}),
    ],
)
def test_every_direction_of_a_comparison(study, variant, holding):
    directions = ("more", "less", "same", "not_more", "not_less")
    claims = {one: claim(FASTER | {"variant": variant, "direction": one}) for one in directions}
    found = {name: one.verdict for name, one in judge(study, claims).items()}
    other = "UNDECIDED" if variant in ("noisy", "below", "above") else "REFUTED"
    assert found == {one: "REPRODUCED" if one in holding else other for one in directions}


def test_a_single_session_settles_no_side(tmp_path):
    once = comparison("fast", "single", 0.9, 1.01)
    first = once.effects[0].model_copy(update={"verdict": "UNDECIDED", "reason": ONE_SESSION})
    once = once.model_copy(update={"effects": [first, *once.effects[1:]]})
    study = write_study(tmp_path, [run("single"), run("fast")], [once])
    assert verdict(study, FASTER | {"direction": "not_more"}).verdict == "UNDECIDED"


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        (FASTER | {"needs": {"device": "cuda"}}, "needs a GPU; the study ran on the CPU"),
        (FASTER | {"needs": {"device": "cuda", "devices": 2}}, "needs 2 GPUs; the study ran on"),
        (FASTER | {"needs": {"devices": 4}}, "needs 4 devices; no run of the study used more than"),
        (FASTER | {"variant": "tf32"}, "the study does not run tf32 (add to its variants)"),
        (LOST, "lost ended unsupported: needs CUDA"),
        (FASTER | {"quantity": "peak_memory"}, "was not measured"),
        (FASTER | {"reference": "slow"}, "fast was not compared with slow"),
        (measured("missing"), "results/memory/fast.json has no number at missing"),
        (measured("some"), "has no number at some"),
        (measured("flag"), "has no number at flag"),
        (measured("max(nothing)"), "has no number at max(nothing): "),
        (measured("x", "search/best.json"), "no job of this study makes results/search/best.json"),
        (measured("per_parameter", "memory/lost.json"), "lost.json ended unsupported: needs CUDA"),
    ],
)
def test_an_impossible_test_says_why(study, test, reason):
    if test["kind"] == "measurement":
        test = test | {"at_most": 1}
    found = verdict(study, test)
    assert found.verdict == "NOT_TESTABLE"
    assert reason in found.reason
    # A number from a machine that the claim is not about is shown but decides nothing.
    assert (found.evidence[0].number is not None) == reason.startswith("needs")


def test_needs_of_the_claim_hold_for_all_its_tests(study):
    found = verdict(study, FASTER, SLOW, needs={"devices": 3})
    assert [item.outcome for item in found.evidence] == ["not_testable"] * 2
    met = {"devices": 2, "device": "cpu"}
    assert verdict(study, FASTER, needs=met).verdict == "REPRODUCED"


def test_impossible_parts_are_left_out_and_counted(study):
    found = verdict(study, FASTER, LOST)
    assert found.verdict == "REPRODUCED"
    assert found.reason.endswith("(1 of 2)")


def test_no_run_at_all(tmp_path):
    study = write_study(tmp_path, [ended("single", "failed", "x"), ended("fast", "oom", "y")])
    found = verdict(study, FASTER)
    assert (found.verdict, found.reason) == ("NOT_TESTABLE", "no run of the study succeeded")


@pytest.mark.parametrize(
    ("value", "direction", "than", "expected"),
    [
        ("per_parameter", "more", 18.0, "REFUTED"),
        ("per_parameter", "not_more", 18.0, "REPRODUCED"),
        ("per_parameter", "not_less", 18.0, "REPRODUCED"),
        ("per_parameter", "less", 18.0, "REFUTED"),
        ("per_parameter", "not_less", 18.1, "REFUTED"),
        ("share", "more", 0.7, "UNDECIDED"),
        ("share", "not_less", 0.7, "REPRODUCED"),
        ("share", "more", 0.75, "UNDECIDED"),
        ("rate", "more", 2.0, "REPRODUCED"),
        ("rate", "more", 3.5, "UNDECIDED"),
        ("rate", "more", 4.0, "REFUTED"),
        ("max(ranks[1:].peak)", "less", 111, "REPRODUCED"),
    ],
)
def test_a_number_against_a_number(study, value, direction, than, expected):
    assert verdict(study, measured(value, direction=direction, than=than)).verdict == expected


def test_a_list_gives_a_range_and_one_number_has_the_uncertainty_of_the_claim(study):
    (evidence,) = verdict(study, measured("share", at_least=0.75, at_most=0.9)).evidence
    assert evidence.outcome == "undecided"
    assert (evidence.number.low, evidence.number.high, evidence.number.samples) == (0.7, 0.8, 2)
    once = measured("per_parameter")
    assert verdict(study, once | {"at_most": 19}).verdict == "REPRODUCED"
    doubtful = once | {"number": once["number"] | {"uncertainty": 0.1}}
    (evidence,) = verdict(study, doubtful | {"at_most": 19}).evidence
    assert evidence.outcome == "undecided"
    ends = evidence.number
    assert (ends.median, ends.low, ends.high) == pytest.approx((18.0, 16.2, 19.8))
    assert verdict(study, doubtful | {"at_most": 16}).verdict == "REFUTED"


def test_a_ratio_of_two_numbers(study):
    one = {"file": "results/memory/{variant}.json", "variant": "fast", "value": "ranks[0].peak"}
    other = one | {"value": "max(ranks[1:].peak)"}
    ratio = {"kind": "ratio", "what": "r", "numerator": one, "denominator": other}
    (evidence,) = verdict(study, ratio | {"direction": "more"}).evidence
    assert evidence.number.median == pytest.approx(200 / 110)
    assert verdict(study, ratio | {"direction": "less"}).verdict == "REFUTED"
    assert verdict(study, ratio | {"direction": "more", "at_least": 1.9}).verdict == "PARTLY"
    factor = {"file": "results/machine/roofline.json", "value": "bandwidth"}
    (evidence,) = verdict(study, ratio | {"direction": "more", "factor": factor}).evidence
    assert evidence.number.median == pytest.approx(2000 / 110)
    assert set(evidence.files) == {"results/memory/fast.json", "results/machine/roofline.json"}
    over_nothing = ratio | {"direction": "more", "denominator": one | {"value": "`0`"}}
    assert verdict(study, over_nothing).verdict == "NOT_TESTABLE"


@pytest.mark.parametrize(
    ("status", "of_certificate", "of_throughput"),
    [
        ("equivalent", "REPRODUCED", "REPRODUCED"),
        ("not_equivalent", "REFUTED", "UNDECIDED"),
        ("inconclusive", "UNDECIDED", "UNDECIDED"),
        ("different", "NOT_TESTABLE", "REPRODUCED"),
        ("failed", "NOT_TESTABLE", "UNDECIDED"),
    ],
)
def test_certificates(tmp_path, status, of_certificate, of_throughput):
    """A variant that trains another model is no evidence for a speed-up."""
    pairs = [comparison("fast", "single", 1.5, 1.7)]
    study = write_study(tmp_path, [run("single"), run("fast")], pairs, {"fast": status})
    assert verdict(study, {"kind": "certificate", "variant": "fast"}).verdict == of_certificate
    assert verdict(study, FASTER).verdict == of_throughput


@pytest.mark.parametrize(
    ("certificate", "own"),
    [("inconclusive", "equivalent"), ("equivalent", "equivalent"), ("inconclusive", "different")],
    ids=["variant", "reference", "another model by design"],
)
def test_turns_that_computed_differently_than_certified_are_no_evidence(tmp_path, certificate, own):
    """Of the variant or of the reference; traffic is counted in a run that was certified."""
    timed = comparison("fast", "single", 1.5, 1.7, traffic=(0.5, 0.5))
    timed = timed.model_copy(update={"certificate": certificate, "counts": False})
    study = write_study(tmp_path, [run("single"), run("fast")], [timed], {"fast": own})
    found = verdict(study, FASTER)
    assert found.verdict == "UNDECIDED"
    assert "was timed differently than certified" in found.evidence[0].reason
    assert verdict(study, LESS_TRAFFIC).verdict == "REPRODUCED"
    ended = comparison("fast", "single", 1.5, 1.7)
    lost = ended.effects[0].model_copy(update={"ratio": None, "verdict": None, "reason": "oom"})
    ended = ended.model_copy(update={"effects": [lost, *ended.effects[1:]], "counts": False})
    study = write_study(tmp_path / "ended", [run("single"), run("fast")], [ended])
    assert verdict(study, FASTER).verdict == "NOT_TESTABLE", "that it ended is another reason"


SIZES = {value: f"s{value}" for value in (1, 2, 4)}
RISES = {"kind": "trend", "family": "sizes", "direction": "rises"}
TO_BEST = {"until_best": True}
FEWER = {"quantity": "all_reduces", "direction": "falls"}
EQUAL = [(0.99, 1.01), (0.99, 1.01)]
UNCOUNTED = [None] * 3


@pytest.mark.parametrize(
    ("ratios", "counts", "test", "expected"),
    [
        ([(1.2, 1.3), (1.5, 1.6)], UNCOUNTED, {}, "REPRODUCED"),
        ([(1.2, 1.3), (1.2, 1.3)], UNCOUNTED, {}, "REPRODUCED"),
        ([(1.5, 1.6), (1.2, 1.3)], UNCOUNTED, {}, "REFUTED"),
        (EQUAL, UNCOUNTED, {}, "REFUTED"),
        ([(0.95, 1.05), (0.9, 1.1)], UNCOUNTED, {}, "UNDECIDED"),
        # A trend may end at the best value.
        ([(1.5, 1.6), (1.2, 1.3)], UNCOUNTED, TO_BEST, "REPRODUCED"),
        ([(0.7, 0.8), (1.2, 1.3)], UNCOUNTED, TO_BEST, "REFUTED"),
        ([(0.7, 0.8), (0.6, 0.7)], UNCOUNTED, TO_BEST, "REFUTED"),
        # Counts are exact.
        (EQUAL, [90, 30, 30], FEWER, "REPRODUCED"),
        (EQUAL, [900, 900, 899], FEWER, "REPRODUCED"),
        (EQUAL, [90, 30, 31], FEWER, "REFUTED"),
        (EQUAL, [30, 30, 30], FEWER, "REFUTED"),
        (EQUAL, UNCOUNTED, FEWER, "NOT_TESTABLE"),
        (EQUAL, [0, 0, 0], FEWER, "NOT_TESTABLE"),
    ],
)
def test_trends(tmp_path, ratios, counts, test, expected):
    """Over three values, the first of which is the reference."""
    names = list(SIZES.values())
    runs = [run(name, all_reduces=count) for name, count in zip(names, counts, strict=True)]
    pairs = [comparison(name, "s1", *ends) for name, ends in zip(names[1:], ratios, strict=True)]
    study, families = write_study(tmp_path, runs, pairs), {"sizes": family("s1", SIZES)}
    found = judge(study, {"mine": claim(RISES | test)}, families)["mine"]
    assert found.verdict == expected, found.evidence
    assert found.evidence[0].variants == names


def test_counts_need_no_several_sessions(tmp_path):
    """Those of a single session count, too, and every difference of traffic is real."""
    pairs = [comparison(f"s{n}", "s1", 1, 1, traffic=(1 + n / 1e3, 1 + n / 1e3)) for n in (2, 4)]
    once = {"verdict": "UNDECIDED", "reason": ONE_SESSION}
    for n, pair in enumerate(pairs):
        effects = [pair.effects[0].model_copy(update=once), *pair.effects[1:]]
        pairs[n] = pair.model_copy(update={"effects": effects})
    runs = [run(name, all_reduces=90 // n) for n, name in SIZES.items()]
    lost = dict.fromkeys(("s2", "s4"), "not_equivalent")
    for certificates, expected in (({}, "REPRODUCED"), (lost, "NOT_TESTABLE")):
        study = write_study(tmp_path, runs, pairs, certificates)
        tests = {"fewer": FEWER, "more": {"quantity": "traffic"}}
        claims = {name: claim(RISES | test) for name, test in tests.items()}
        found = judge(study, claims, {"sizes": family("s1", SIZES)})
        assert {one.verdict for one in found.values()} == {expected}


def test_a_trend_against_the_claim_is_named_even_if_no_step_shows_it(tmp_path):
    pairs = [comparison("s2", "s1", 0.975, 1.0), comparison("s4", "s1", 0.95, 0.975)]
    study = write_study(tmp_path, [run(name) for name in SIZES.values()], pairs)
    (evidence,) = judge(study, {"mine": claim(RISES)}, {"sizes": family("s1", SIZES)})[
        "mine"
    ].evidence
    assert (evidence.outcome, evidence.reason) == ("contradicted", "falls from 1 to 4")


def test_the_job_refuses_unreadable_input(tmp_path, capsys):
    study = write_study(tmp_path, [run("single")])
    output = study / "out.json"
    asked = {"C1": claim(RISES)}
    assert run_job("claims", claims=asked, results=study, output=output) == 1
    assert "families.json" in capsys.readouterr().err
    (study / "families.json").write_text("[]")
    wrong = {"C1": {"statement": "x"}}
    assert run_job("claims", claims=wrong, results=study, output=output) == 1
    assert "claims.C1.source" in capsys.readouterr().err
    assert not output.exists()


def test_a_file_that_an_older_study_has_left_is_no_evidence(tmp_path):
    test = measured("peak", "memory/fast.json", at_most=300)
    left = {"memory/fast.json": {"status": "ok", "peak": 200}}
    folder = write_study(tmp_path / "results", [run("single"), run("fast")], files=left)
    assert verdict(folder, test).verdict == "REPRODUCED"
    file = folder / "study.json"
    quick = json.loads(file.read_text()) | {"memory": None}
    file.write_text(json.dumps(quick))
    found = verdict(folder, test)
    assert found.verdict == "NOT_TESTABLE"
    assert found.evidence[0].reason == "no job of this study makes results/memory/fast.json"
