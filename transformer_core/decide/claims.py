"""Judges claims by the results of a study.

Each test of a claim is judged on its own; together they give one verdict: REFUTED if any test
contradicts the claim; else UNDECIDED if any test is undecided; else PARTLY if every direction holds
but a size does not; else REPRODUCED. Tests that are impossible on this machine or in this study are
left out and named; a claim without any possible test is NOT_TESTABLE.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import ValidationError

from schemas.config.claims import (
    CertificateTest,
    Claim,
    Claims,
    ClaimTest,
    ComparisonTest,
    Direction,
    Expected,
    MeasurementTest,
    Needs,
    Number,
    OneSided,
    RatioTest,
    TrendTest,
    numbers_of,
    variants_of,
)
from schemas.errors import ConfigError
from schemas.results import (
    Certificate,
    ClaimResult,
    ClaimVerdict,
    Evidence,
    FamilyCurve,
    Interval,
    Outcome,
    Pair,
    Status,
    Verdict,
)
from transformer_core.certify.bounds import in_short
from transformer_core.common.digests import write_result
from transformer_core.common.endings import reproducing_command
from transformer_core.common.job import Job
from transformer_core.common.records import read_as
from transformer_core.decide.family_curves import FEWEST_MEMBERS
from transformer_core.decide.intervals import exact, product, quotient, range_of, widened
from transformer_core.decide.study_results import StudyResults, timed_otherwise
from transformer_core.decide.verdicts import ONE_SESSION, verdict_of
from transformer_core.study.compared_pairs import known_targets

SIGNS: dict[Verdict, int] = {"FASTER": 1, "MORE": 1, "SAME": 0, "SLOWER": -1, "LESS": -1}
"""Direction of each verdict; undecided ones have none."""
_HOLD: dict[Direction, tuple[str, set[int]]] = {
    "more": ("more", {1}),
    "less": ("less", {-1}),
    "same": ("the same", {0}),
    "not_more": ("no more", {-1, 0}),
    "not_less": ("no less", {0, 1}),
}
"""Each direction in words, and the directions of verdicts that agree with it."""
QUANTITIES: dict[str, str] = {
    "throughput": "Throughput",
    "peak_memory": "Peak memory",
    "traffic": "Bytes sent per step",
    "all_reduces": "All-reduces per step",
}


class Judgement(NamedTuple):
    """Outcome of a test, the reason, and the deciding number."""

    outcome: Outcome
    reason: str
    number: Interval | None = None


def judge(test: ClaimTest, needs: Sequence[Needs], results: StudyResults) -> Evidence:
    """The evidence of ``test``, if the study's runs meet ``needs``."""
    if obstacle := obstacle_to(test, results):
        judgement = Judgement("not_testable", obstacle)
    elif doubt := doubt_about(test, results):
        judgement = Judgement("undecided", doubt)
    else:
        match test:
            case ComparisonTest():
                judgement = _comparison(test, results)
            case CertificateTest():
                judgement = _certificate(results.certificates[test.variant])
            case MeasurementTest() | RatioTest():
                judgement = _number(test, results)
            case TrendTest():
                judgement = _trend(test, results)
    if unmet := _unmet(needs, results):
        # Keep the number: the claim may only be about another kind of machine.
        judgement = Judgement("not_testable", unmet, judgement.number)
    named = list(dict.fromkeys(variants_of(test).values()))
    if isinstance(test, TrendTest):
        named = [point.variant for point in curve_of(test, results).points]
    return Evidence(
        kind=test.kind,
        what=what_of(test, results),
        expected=expected_of(test),
        variants=named,
        files=files_of(test, results),
        **judgement._asdict(),
    )


def curve_of(test: TrendTest, results: StudyResults) -> FamilyCurve:
    return next(curve for curve in results.curves if curve.family == test.family)


def _comparison(test: ComparisonTest, results: StudyResults) -> Judgement:
    comparison = results.by_pair.get(Pair(test.variant, test.reference))
    if comparison is None:
        return Judgement("not_testable", f"{test.variant} was not compared with {test.reference}")
    effect = comparison.effect(test.quantity)
    if effect.verdict is None:
        return Judgement("not_testable", effect.reason or comparison.note or "was not measured")
    sign = SIGNS.get(effect.verdict)
    reason = effect.reason or f"the verdict is {effect.verdict}"
    if sign is None:
        if effect.ratio and effect.reason != ONE_SESSION:
            ends = {"not_more": effect.ratio.high, "not_less": 1 / effect.ratio.low}
            if ends.get(test.direction, inf) <= 1 + results.study.comparison.margin:
                reason = "the interval reaches beyond the margin only where the claim allows it"
                return _with_size(effect.ratio, test, reason)
        return Judgement("undecided", reason, effect.ratio)
    if sign not in _HOLD[test.direction][1]:
        return Judgement("contradicted", reason, effect.ratio)
    if effect.ratio is None:
        # The reference counts zero: a direction without a size.
        sized = test.at_least is not None or test.at_most is not None
        return Judgement("undecided" if sized else "holds", reason)
    return _with_size(effect.ratio, test, reason)


def _certificate(certificate: Certificate) -> Judgement:
    if certificate.status == "equivalent":
        return Judgement("holds", in_short(certificate))
    known: dict[str, Outcome] = {"not_equivalent": "contradicted", "inconclusive": "undecided"}
    return Judgement(known.get(certificate.status, "not_testable"), certificate.reason)


def _number(test: MeasurementTest | RatioTest, results: StudyResults) -> Judgement:
    try:
        if isinstance(test, MeasurementTest):
            return _against(read_number(test.number, results), test, test.direction, test.than)
        above, below = (read_number(part, results) for part in (test.numerator, test.denominator))
        ratio = quotient(above, below)
        if test.factor is not None:
            ratio = product(ratio, read_number(test.factor, results))
        return _against(ratio, test, test.direction, 1.0)
    except ConfigError:
        raise  # of a damaged file
    except (Unmeasured, ValueError) as error:
        return Judgement("not_testable", str(error))


def _against(
    found: Interval, test: Expected, direction: OneSided | None, than: float | None
) -> Judgement:
    if direction is None or than is None:
        within, outside = (f"lies {where} the claimed range" for where in ("within", "outside"))
        across = "spans an end of the claimed range"
        return _sized(found, test, within, ("contradicted", outside), across)
    sign = 1 if direction in ("more", "not_less") else -1
    least, most = sorted(sign * (end - than) for end in (found.low, found.high))
    # A value exactly at the limit is neither more nor less.
    strict = direction in ("more", "less")
    holds, fails = (least > 0, most <= 0) if strict else (least >= 0, most < 0)
    if fails:
        denied = {"not_more": "more", "not_less": "less"}.get(direction, f"not {direction}")
        return Judgement("contradicted", f"is {denied} than {than:g}", found)
    if not holds:
        return Judgement("undecided", f"spans {than:g}", found)
    return _with_size(found, test, f"is {_HOLD[direction][0]} than {than:g}")


def _with_size(found: Interval, test: Expected, reason: str) -> Judgement:
    """The judgement of a test whose direction holds."""
    if test.at_least is None and test.at_most is None:
        return Judgement("holds", reason, found)
    within = f"{reason}, and the size lies within the claimed range"
    across = f"{reason}; the interval spans an end of the claimed size"
    return _sized(found, test, within, ("size_differs", f"{reason}, but the size differs"), across)


def _sized(
    found: Interval, test: Expected, within: str, outside: tuple[Outcome, str], across: str
) -> Judgement:
    """Judges by the bounds of a test; the other arguments give the reason for each case."""
    low = -inf if test.at_least is None else test.at_least
    high = inf if test.at_most is None else test.at_most
    if low <= found.low and found.high <= high:
        return Judgement("holds", within, found)
    if found.high < low or found.low > high:
        return Judgement(*outside, found)
    return Judgement("undecided", across, found)


def _trend(test: TrendTest, results: StudyResults) -> Judgement:
    """Whether a family's curve moves in the direction that the test claims."""
    curve = curve_of(test, results)
    # Counts are exact: any difference is real, and sessions add nothing.
    counted = test.quantity in ("traffic", "all_reduces")
    values: list[tuple[float, Interval]] = [
        (point.value, size if isinstance(size, Interval) else exact(size))
        for point in curve.points
        if (point.certificate in ("equivalent", "different") if counted else point.counts)
        and (size := getattr(point, test.quantity)) is not None
    ]
    if len(values) < FEWEST_MEMBERS:
        few = f"only {len(values)} of {len(curve.points)} values have this quantity"
        return Judgement("not_testable", few if curve.points else curve.note)
    margin = 0.0 if counted else results.study.comparison.margin
    if test.until_best:
        best = max(range(len(values)), key=lambda index: values[index][1].median)
        values = values[: best + 1] if best else values
    wanted = 1 if test.direction == "rises" else -1
    try:
        whole = quotient(values[-1][1], values[0][1])
        for (start, before), (end, after) in pairwise(values):
            if _side(step := quotient(after, before), margin) == -wanted:
                turn = "falls" if wanted == 1 else "rises"
                by = f"{step.median:.3g}, {step.low:.3g} to {step.high:.3g}"
                reason = f"{turn} from {start:g} to {end:g} ({by})"
                return Judgement("contradicted", reason, whole)
    except ValueError as error:  # a size is 0
        return Judgement("not_testable", str(error))
    ends = f"from {values[0][0]:g} to {values[-1][0]:g}"
    side = _side(whole, margin)
    if side is None:
        return Judgement("undecided", f"no difference is shown {ends}", whole)
    if side != wanted:
        course = {0: "stays level", 1: "rises", -1: "falls"}[side]
        return Judgement("contradicted", f"{course} {ends}", whole)
    return Judgement("holds", f"{test.direction} {ends}", whole)


def _side(ratio: Interval, margin: float) -> int | None:
    """1 for a ratio above 1, -1 below, 0 for the same within ``margin``, null if undecided."""
    return SIGNS.get(verdict_of("throughput", ratio, margin))


class Unmeasured(LookupError):
    """A number missing from the results; the message says why."""


def read_number(number: Number, results: StudyResults) -> Interval:
    """The number in the results; Unmeasured if there is none.

    A single number is exact, a list of numbers gives their median and range, and an interval is
    used unchanged; the uncertainty stated in the claim is added to each.
    """
    content = _read(number.target, results)
    try:
        value = jmespath.search(number.value, content)
    except JMESPathError as error:
        # A function got null or a wrong type: its input was not measured.
        message = " ".join(str(error).split())
        raise Unmeasured(f"{number.target} has no number at {number.value}: {message}") from None
    values = value if isinstance(value, list) else [value]
    with suppress(ValidationError):
        if isinstance(value, dict):
            return widened(Interval.model_validate(value), number.uncertainty)
    if not values or not all(type(item) in (int, float) and isfinite(item) for item in values):
        raise Unmeasured(f"{number.target} has no number at {number.value}")
    return widened(range_of(values), number.uncertainty)


def _read(target: str, results: StudyResults) -> Any:
    # An older study may have left a file.
    if target not in known_targets(results.study):
        raise Unmeasured(f"no job of this study makes {target}")
    content = read_as(results.folder / Path(target).relative_to("results"), Any)
    # Other statuses are results: of a certificate, a search, a race to a quality.
    if isinstance(content, dict) and content.get("status") in {*get_args(Status)} - {"ok"}:
        reason = content.get("reason") or "no reason was given"
        raise Unmeasured(f"{target} ended {content['status']}: {reason}")
    return content


def what_of(test: ClaimTest, results: StudyResults) -> str:
    match test:
        case ComparisonTest():
            return f"{QUANTITIES[test.quantity]} of {test.variant} over {test.reference}"
        case CertificateTest():
            return f"Certificate of {test.variant}"
        case MeasurementTest() | RatioTest():
            return test.what
        case TrendTest():
            title = curve_of(test, results).title
            return f"{QUANTITIES[test.quantity]} by {title[0].lower()}{title[1:]} ({test.family})"


def expected_of(test: ClaimTest) -> str:
    match test:
        case CertificateTest():
            return "trains the same model"
        case TrendTest():
            return test.direction + (" up to the best value" if test.until_best else "")
        case MeasurementTest():
            direction = f"{_HOLD[test.direction][0]} than {test.than:g}" if test.direction else ""
        case ComparisonTest() | RatioTest():
            direction = _HOLD[test.direction][0] if test.direction else ""
    bounds = [
        f"{words} {bound:g}"
        for words, bound in (("at least", test.at_least), ("at most", test.at_most))
        if bound is not None
    ]
    return ", ".join(filter(None, [direction, " and ".join(bounds)]))


def files_of(test: ClaimTest, results: StudyResults) -> list[str]:
    match test:
        case ComparisonTest(quantity="traffic"):
            return [f"results/runs/{v}/metrics.json" for v in (test.variant, test.reference)]
        case ComparisonTest():
            found = results.by_pair.get(Pair(test.variant, test.reference))
            return [f"results/{(found and found.record) or 'comparisons.json'}"]
        case CertificateTest():
            return [f"results/equivalence/{test.variant}.json"]
        case TrendTest():
            return ["results/families.json"]
        case _:
            return list(dict.fromkeys(number.target for number in numbers_of(test)))


def obstacle_to(test: ClaimTest, results: StudyResults) -> str | None:
    """Why a test cannot be made in this study; null if it can."""
    named = dict.fromkeys(variants_of(test).values())
    if missing := [name for name in named if name not in results.variants]:
        return f"the study does not run {' and '.join(missing)} (add to its variants)"
    for name in named:
        if (result := results.variants[name]).status != "ok":
            return f"{name} ended {result.status}: {result.reason or 'no reason was given'}"
    return None


def doubt_about(test: ClaimTest, results: StudyResults) -> str | None:
    """Why the variants' numbers are no evidence: one does not train the same model, or took turns
    that computed differently than certified."""
    if isinstance(test, CertificateTest):
        return None
    for name in variants_of(test).values():
        certificate = results.certificates[name]
        if certificate.status == "not_equivalent":
            return f"{name} does not train the same model: {certificate.reason}"
        if certificate.status not in ("equivalent", "different"):
            return f"{name} has no certificate that it trains the same model"
    if isinstance(test, ComparisonTest) and test.quantity != "traffic":
        comparison = results.by_pair.get(Pair(test.variant, test.reference))
        if comparison is not None and timed_otherwise(results, comparison):
            return f"{test.variant} or {test.reference} was timed differently than certified"
    return None


def _unmet(needs: Sequence[Needs], results: StudyResults) -> str | None:
    """The first of ``needs`` that no successful run of the study meets."""
    runs = [
        # A single DataParallel process drives several devices.
        (
            one.topology.device,
            max(one.topology.world_size, len({(m.rank, m.device) for m in one.memory})),
        )
        for result in results.variants.values()
        for one in result.repeats
        if one.status == "ok" and one.topology is not None
    ]
    for need in needs:
        fitting = [count for device, count in runs if need.device in (None, device)]
        if max(fitting, default=0) >= need.devices:
            continue
        if not runs:
            return "no run of the study succeeded"
        noun = {"cuda": "GPU", "cpu": "CPU device", None: "device"}[need.device]
        wanted = f"needs {need.devices} {noun}s" if need.devices > 1 else f"needs a {noun}"
        if not fitting:
            kinds = {"cuda": "GPUs", "cpu": "the CPU"}
            return f"{wanted}; the study ran on {kinds[runs[0][0]]}"
        return f"{wanted}; no run of the study used more than {max(fitting)}"
    return None


REASONS: dict[ClaimVerdict, str] = {
    "REPRODUCED": "Every test that could be made agrees",
    "PARTLY": "The direction is as claimed, the size is not",
    "REFUTED": "A test contradicts it",
    "UNDECIDED": "No test contradicts it, but not all of them are settled",
}


def judge_claim(name: str, claim: Claim, results: StudyResults, command: str) -> ClaimResult:
    evidence = [judge(test, [claim.needs, test.needs], results) for test in claim.tests]
    outcomes = {item.outcome for item in evidence} - {"not_testable"}
    verdict: ClaimVerdict = "PARTLY" if "size_differs" in outcomes else "REPRODUCED"
    if not outcomes:
        verdict = "NOT_TESTABLE"
    elif "contradicted" in outcomes:
        verdict = "REFUTED"
    elif "undecided" in outcomes:
        verdict = "UNDECIDED"
    missing = [item.reason for item in evidence if item.outcome == "not_testable"]
    if verdict == "NOT_TESTABLE":
        first, *others = dict.fromkeys(missing)
        reason = f"{first}; further reasons next to the tests" if others else first
    else:
        made = f" ({len(evidence) - len(missing)} of {len(evidence)})" if missing else ""
        reason = f"{REASONS[verdict]}{made}"
    return ClaimResult(
        claim=name,
        statement=claim.statement,
        source=claim.source,
        verdict=verdict,
        reason=reason,
        evidence=evidence,
        command=command,
    )


class ClaimsJob(Job):
    """Tests claims against the results of a study: reproduced, refuted, partly, undecided or not
    testable here, each with its numbers."""

    kind = "claims"

    claims: Claims  # the claims by id
    results: Path = Path("results")  # folder of the results, with families.json
    output: Path

    def run(self, log_file: Path | None) -> None:
        results = StudyResults(self.results)
        command = reproducing_command(self.output)
        judged = [judge_claim(name, claim, results, command) for name, claim in self.claims.items()]
        text = json.dumps([item.model_dump(mode="json") for item in judged], indent=1)
        write_result(self.output, text + "\n")
