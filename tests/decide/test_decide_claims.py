"""Verdicts on claims: every one can be reached, and a planted false claim is refuted."""

from pathlib import Path
from typing import Any

import pytest
from claim_builders import claim, comparison, ended, family, interval, judge, run, write_study

from schemas.results import ClaimResult, Effect
from tests.orders import run_job

FASTER = {"kind": "comparison", "variant": "fast", "reference": "single", "direction": "more"}
SLOW = FASTER | {"variant": "slow"}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """One variant that is faster, one slower, one alike, one unsettled, one that cannot run."""
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
            ended("lost", "unsupported", "needs CUDA"),
        ],
        [
            comparison("fast", "single", 1.5, 1.7, traffic=(0.5, 0.5)),
            comparison("slow", "single", 0.6, 0.7),
            comparison("alike", "single", 0.995, 1.005),
            comparison("noisy", "single", 0.9, 1.1),
        ],
        files=files,
    )


def verdict(study: Path, *tests: dict[str, Any], **more: Any) -> ClaimResult:
    return judge(study, {"mine": claim(*tests, **more)})["mine"]


def measured(value: str, **more: Any) -> dict[str, Any]:
    number = {"file": "results/memory/{variant}.json", "variant": "fast", "value": value}
    return {"kind": "measurement", "what": "Bytes", "number": number} | more


def test_a_true_claim_is_reproduced_with_its_number(study):
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


def test_what_the_reference_has_none_of_has_a_direction_and_no_size(tmp_path):
    counted = comparison("fast", "single", 1.5, 1.7)
    none = Effect(quantity="traffic", ratio=None, verdict="MORE", reason="the reference has none")
    counted = counted.model_copy(update={"effects": [*counted.effects[:2], none]})
    study = write_study(tmp_path, [run("single"), run("fast")], [counted])
    more = FASTER | {"quantity": "traffic"}
    assert verdict(study, more).verdict == "REPRODUCED"
    assert verdict(study, more | {"direction": "less"}).verdict == "REFUTED"
    assert verdict(study, more | {"at_least": 2}).verdict == "UNDECIDED"


NOISY = FASTER | {"variant": "noisy"}
LESS_TRAFFIC = FASTER | {"direction": "less", "quantity": "traffic"}


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        # A slow-down is not faster, whatever is claimed beside it.
        ([SLOW], "REFUTED"),
        ([FASTER, SLOW], "REFUTED"),
        ([FASTER | {"direction": "less"}], "REFUTED"),
        # A bound that the data contradict
        ([measured("per_parameter", at_most=16)], "REFUTED"),
        ([measured("per_parameter", at_least=20)], "REFUTED"),
        ([measured("per_parameter", at_least=18)], "REPRODUCED"),
        # The right direction and another size
        ([FASTER | {"at_least": 2}], "PARTLY"),
        ([FASTER | {"at_most": 1.4}], "PARTLY"),
        ([FASTER | {"at_least": 2}, SLOW], "REFUTED"),
        # A direction or size that is not settled
        ([NOISY], "UNDECIDED"),
        ([NOISY, FASTER], "UNDECIDED"),
        ([NOISY, FASTER | {"at_least": 2}], "UNDECIDED"),
        ([FASTER | {"at_least": 1.6}], "UNDECIDED"),
        # Other quantities than throughput
        ([LESS_TRAFFIC | {"at_least": 0.5, "at_most": 0.5}], "REPRODUCED"),
        ([FASTER | {"quantity": "traffic"}], "REFUTED"),
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
    ],
)
def test_every_direction_of_a_comparison(study, variant, holding):
    for direction in ("more", "less", "same", "not_more", "not_less"):
        found = verdict(study, FASTER | {"variant": variant, "direction": direction})
        if variant == "noisy":
            assert found.verdict == "UNDECIDED"
        else:
            assert found.verdict == ("REPRODUCED" if direction in holding else "REFUTED")


def test_evidence_names_the_files_of_its_quantity_and_how_it_failed(study):
    (evidence,) = verdict(study, LESS_TRAFFIC).evidence
    assert "results/runs/fast/metrics.json" in evidence.files
    (evidence,) = verdict(study, FASTER | {"at_least": 2}).evidence
    assert evidence.outcome == "size_differs"


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        (FASTER | {"needs": {"device": "cuda"}}, "needs a GPU; the study ran on the CPU"),
        (FASTER | {"needs": {"device": "cuda", "devices": 2}}, "needs 2 GPUs; the study ran on"),
        (FASTER | {"needs": {"devices": 4}}, "needs 4 devices; no run of the study used more than"),
        (FASTER | {"variant": "tf32"}, "the study does not run tf32 (add to its variants)"),
        (FASTER | {"variant": "lost"}, "lost ended unsupported: needs CUDA"),
        (FASTER | {"quantity": "peak_memory"}, "was not measured"),
        (FASTER | {"reference": "slow"}, "fast was not compared with slow"),
        (measured("missing"), "results/memory/fast.json has no number at missing"),
        (measured("nothing"), "has no number at nothing"),
        (measured("some"), "has no number at some"),
        (measured("flag"), "has no number at flag"),
        (measured("ranks"), "has no number at ranks"),
        (measured("max(nothing)"), "has no number at max(nothing): "),
        (
            measured("x", number={"file": "results/search/best.json", "value": "x"}),
            "results/search/best.json does not exist: no job of this study makes it",
        ),
    ],
)
def test_what_cannot_be_tested_says_why(study, test, reason):
    if test["kind"] == "measurement":
        test = test | {"at_most": 1}
    found = verdict(study, test)
    assert found.verdict == "NOT_TESTABLE"
    assert reason in found.reason
    # What was seen on a machine that the claim is not about is shown, and decides nothing.
    assert (found.evidence[0].number is not None) == reason.startswith("needs")


def test_needs_of_the_claim_hold_for_all_its_tests(study):
    found = verdict(study, FASTER, SLOW, needs={"devices": 3})
    assert [item.outcome for item in found.evidence] == ["not_testable"] * 2
    assert verdict(study, FASTER, needs={"devices": 2}).verdict == "REPRODUCED"
    assert verdict(study, FASTER, needs={"device": "cpu"}).verdict == "REPRODUCED"


def test_parts_that_cannot_be_tested_are_left_out_and_counted(study):
    found = verdict(study, FASTER, FASTER | {"variant": "lost"})
    assert found.verdict == "REPRODUCED"
    assert found.reason.endswith("(1 of 2)")
    assert found.evidence[1].reason == "lost ended unsupported: needs CUDA"


def test_a_result_that_did_not_end_well_is_no_number(study):
    number = {"file": "results/memory/lost.json", "value": "per_parameter"}
    found = verdict(study, measured("x", number=number, at_least=0))
    assert found.reason == "results/memory/lost.json ended unsupported: needs CUDA"


def test_no_run_at_all(tmp_path):
    study = write_study(tmp_path, [ended("single", "failed", "x"), ended("fast", "oom", "y")])
    found = verdict(study, FASTER)
    assert (found.verdict, found.reason) == ("NOT_TESTABLE", "no run of the study ended well")


@pytest.mark.parametrize(
    ("value", "direction", "than", "expected"),
    [
        ("per_parameter", "more", 17.9, "REPRODUCED"),
        ("per_parameter", "more", 18.0, "REFUTED"),
        ("per_parameter", "not_more", 18.0, "REPRODUCED"),
        ("per_parameter", "not_less", 18.0, "REPRODUCED"),
        ("per_parameter", "less", 18.0, "REFUTED"),
        ("per_parameter", "not_less", 18.1, "REFUTED"),
        ("share", "more", 0.5, "REPRODUCED"),
        ("share", "more", 0.7, "UNDECIDED"),
        ("share", "not_less", 0.7, "REPRODUCED"),
        ("share", "more", 0.75, "UNDECIDED"),
        ("share", "less", 0.75, "UNDECIDED"),
        ("rate", "more", 2.0, "REPRODUCED"),
        ("rate", "more", 3.5, "UNDECIDED"),
        ("rate", "more", 4.0, "REFUTED"),
        ("max(ranks[1:].peak)", "less", 111, "REPRODUCED"),
    ],
)
def test_a_number_against_a_number(study, value, direction, than, expected):
    assert verdict(study, measured(value, direction=direction, than=than)).verdict == expected


def test_a_list_of_numbers_is_a_range(study):
    (evidence,) = verdict(study, measured("share", at_least=0.75, at_most=0.9)).evidence
    assert evidence.outcome == "undecided"
    assert (evidence.number.low, evidence.number.high, evidence.number.samples) == (0.7, 0.8, 2)


def test_a_number_measured_once_is_as_uncertain_as_the_claim_says(study):
    number = {"file": "results/memory/{variant}.json", "variant": "fast", "value": "per_parameter"}
    doubtful = number | {"uncertainty": 0.1}
    assert verdict(study, measured("x", number=number, at_most=19)).verdict == "REPRODUCED"
    (evidence,) = verdict(study, measured("x", number=doubtful, at_most=19)).evidence
    assert evidence.outcome == "undecided"
    ends = evidence.number
    assert (ends.median, ends.low, ends.high) == pytest.approx((18.0, 16.2, 19.8))
    assert verdict(study, measured("x", number=doubtful, at_most=16)).verdict == "REFUTED"


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
    nothing = one | {"value": "`0`"}
    found = verdict(study, ratio | {"direction": "more", "denominator": nothing})
    assert found.verdict == "NOT_TESTABLE"


def certified(tmp_path: Path, status: Any) -> Path:
    return write_study(
        tmp_path,
        [run("single"), run("fast")],
        [comparison("fast", "single", 1.5, 1.7)],
        certificates={"fast": status},
    )


@pytest.mark.parametrize(
    ("status", "of_certificate", "of_throughput"),
    [
        ("equivalent", "REPRODUCED", "REPRODUCED"),
        ("not_equivalent", "REFUTED", "UNDECIDED"),
        ("different", "NOT_TESTABLE", "REPRODUCED"),
        ("failed", "NOT_TESTABLE", "UNDECIDED"),
    ],
)
def test_certificates(tmp_path, status, of_certificate, of_throughput):
    """What trains another model than it should is no evidence for a speed-up."""
    study = certified(tmp_path, status)
    assert verdict(study, {"kind": "certificate", "variant": "fast"}).verdict == of_certificate
    assert verdict(study, FASTER).verdict == of_throughput


SIZES = {value: f"s{value}" for value in (1, 2, 4)}


def trend(tmp_path: Path, ratios: list[tuple[float, float]], **more: Any) -> ClaimResult:
    """The verdict on a rise over three values, the first of which is the reference."""
    reduces = more.pop("all_reduces", [None] * 3)
    runs = [run(name, all_reduces=n) for name, n in zip(SIZES.values(), reduces, strict=True)]
    pairs = [
        comparison(name, "s1", *ends)
        for name, ends in zip(list(SIZES.values())[1:], ratios, strict=True)
    ]
    study = write_study(tmp_path, runs, pairs)
    test = {"kind": "trend", "family": "sizes", "direction": "rises"} | more
    return judge(study, {"mine": claim(test)}, {"sizes": family("s1", SIZES)})["mine"]


TO_BEST = {"until_best": True}
EQUAL = [(0.99, 1.01), (0.99, 1.01)]


def fewer(*counts: int) -> dict[str, Any]:
    """A fall of the all-reduces of the three values."""
    test = {"quantity": "all_reduces", "direction": "falls"}
    return test | ({"all_reduces": counts} if counts else {})


@pytest.mark.parametrize(
    ("ratios", "test", "expected"),
    [
        ([(1.2, 1.3), (1.5, 1.6)], {}, "REPRODUCED"),
        ([(1.2, 1.3), (1.2, 1.3)], {}, "REPRODUCED"),
        ([(1.5, 1.6), (1.2, 1.3)], {}, "REFUTED"),
        ([(0.7, 0.8), (1.2, 1.3)], {}, "REFUTED"),
        (EQUAL, {}, "REFUTED"),
        ([(0.95, 1.05), (0.9, 1.1)], {}, "UNDECIDED"),
        ([(0.6, 0.7), (0.5, 0.55)], {}, "REFUTED"),
        # A trend may end at the best value.
        ([(1.5, 1.6), (1.2, 1.3)], TO_BEST, "REPRODUCED"),
        ([(0.7, 0.8), (1.2, 1.3)], TO_BEST, "REFUTED"),
        ([(0.7, 0.8), (0.6, 0.7)], TO_BEST, "REFUTED"),
        # Counts are exact.
        (EQUAL, fewer(90, 30, 30), "REPRODUCED"),
        (EQUAL, fewer(900, 900, 899), "REPRODUCED"),
        (EQUAL, fewer(90, 30, 31), "REFUTED"),
        (EQUAL, fewer(30, 30, 30), "REFUTED"),
        (EQUAL, fewer(), "NOT_TESTABLE"),
        (EQUAL, fewer(0, 0, 0), "NOT_TESTABLE"),
    ],
)
def test_trends(tmp_path, ratios, test, expected):
    found = trend(tmp_path, ratios, **test)
    assert found.verdict == expected, found.evidence
    assert found.evidence[0].variants == list(SIZES.values())


def test_a_trend_over_one_variant_says_what_to_add(study):
    families = {"sizes": family("single", {1: "single", 2: "huge"})}
    test = {"kind": "trend", "family": "sizes", "direction": "rises"}
    found = judge(study, {"mine": claim(test)}, families)["mine"]
    assert found.verdict == "NOT_TESTABLE"
    assert "add huge" in found.reason


def test_the_job_refuses_what_it_cannot_read(tmp_path, capsys):
    study = write_study(tmp_path, [run("single")])
    output = study / "out.json"
    asked = {"C1": claim({"kind": "trend", "family": "sizes", "direction": "rises"})}
    assert run_job("claims", claims=asked, results=study, output=output) == 1
    assert "families.json" in capsys.readouterr().err
    (study / "families.json").write_text("[]")
    wrong = {"C1": {"statement": "x"}}
    assert run_job("claims", claims=wrong, results=study, output=output) == 1
    assert "claims.C1.source" in capsys.readouterr().err
    assert not output.exists()
