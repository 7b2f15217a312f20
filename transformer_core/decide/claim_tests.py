"""Judges a single test of a claim by the measurements."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import ValidationError

from schemas.config.claims import (
    CertificateTest,
    ClaimTest,
    ComparisonTest,
    Direction,
    Expected,
    FamilyQuantity,
    MeasurementTest,
    Needs,
    Number,
    OneSided,
    RatioTest,
    TrendTest,
    numbers_of,
    variants_of,
)
from schemas.results import (
    Evidence,
    FamilyCurve,
    FamilyPoint,
    Interval,
    Outcome,
    Pair,
    Repeat,
    Verdict,
)
from transformer_core.certify.bounds import in_short
from transformer_core.decide.family_curves import FEWEST_MEMBERS
from transformer_core.decide.intervals import exact, product, quotient, range_of, widened
from transformer_core.decide.study_results import StudyResults
from transformer_core.decide.verdicts import verdict_of


@dataclass(frozen=True)
class Findings:
    """The data that tests are judged by."""

    results: StudyResults
    curves: Mapping[str, FamilyCurve]
    folder: Path  # folder of the results
    margin: float  # ratios from 1 / (1 + margin) to 1 + margin are the same


class Judgement(NamedTuple):
    """Outcome of a test, the reason, and the deciding number."""

    outcome: Outcome
    reason: str
    number: Interval | None = None


_HOLD: dict[Direction, set[int]] = {
    "more": {1},
    "less": {-1},
    "same": {0},
    "not_more": {-1, 0},
    "not_less": {0, 1},
}


def judge(test: ClaimTest, needs: Sequence[Needs], findings: Findings) -> Evidence:
    """The evidence of ``test``, if the study's runs meet ``needs``."""
    if obstacle := obstacle_to(test, needs, findings):
        judgement = Judgement("not_testable", obstacle, _observed(test, findings))
    elif doubt := doubt_about(test, findings.results):
        judgement = Judgement("undecided", doubt)
    else:
        judgement = _judge(test, findings)
    named = list(dict.fromkeys(variants_of(test).values()))
    if isinstance(test, TrendTest):
        named = [point.variant for point in findings.curves[test.family].points]
    return Evidence(
        kind=test.kind,
        what=what_of(test, findings.curves),
        expected=expected_of(test),
        outcome=judgement.outcome,
        reason=judgement.reason,
        number=judgement.number,
        variants=named,
        files=files_of(test, findings.results),
    )


def _observed(test: ClaimTest, findings: Findings) -> Interval | None:
    """The number of a test that is inconclusive here because the claim is about another kind of
    machine."""
    if obstacle_to(test, [], findings) or doubt_about(test, findings.results):
        return None
    return _judge(test, findings).number


def size_of(interval: Interval, test: Expected) -> str:
    """Whether a size lies within the bounds of a test: within, outside, or unclear."""
    low = float("-inf") if test.at_least is None else test.at_least
    high = float("inf") if test.at_most is None else test.at_most
    if low <= interval.low and interval.high <= high:
        return "within"
    return "outside" if interval.high < low or interval.low > high else "unclear"


def _judge(test: ClaimTest, findings: Findings) -> Judgement:
    match test:
        case ComparisonTest():
            return _comparison(test, findings)
        case CertificateTest():
            return _certificate(test, findings)
        case MeasurementTest():
            return _measurement(test, findings)
        case RatioTest():
            return _ratio(test, findings)
        case TrendTest():
            return trend(test, findings)


def _comparison(test: ComparisonTest, findings: Findings) -> Judgement:
    pair = Pair(test.variant, test.reference)
    comparison = findings.results.by_pair.get(pair)
    if comparison is None:
        return Judgement("not_testable", f"{test.variant} was not compared with {test.reference}")
    effect = comparison.effect(test.quantity)
    if effect.verdict is None:
        return Judgement("not_testable", effect.reason or comparison.note or "was not measured")
    sign = SIGNS.get(effect.verdict)
    reason = effect.reason or f"the verdict is {effect.verdict}"
    if sign is None:
        return Judgement("undecided", reason, effect.ratio)
    if sign not in _HOLD[test.direction]:
        return Judgement("contradicted", reason, effect.ratio)
    if effect.ratio is None:
        # The reference counts zero: a direction without a size.
        sized = test.at_least is not None or test.at_most is not None
        return Judgement("undecided" if sized else "holds", reason)
    return _with_size(effect.ratio, test, reason)


def _certificate(test: CertificateTest, findings: Findings) -> Judgement:
    certificate = findings.results.certificates[test.variant]
    match certificate.status:
        case "equivalent":
            return Judgement("holds", in_short(certificate))
        case "not_equivalent":
            return Judgement("contradicted", certificate.reason)
        case _:
            return Judgement("not_testable", certificate.reason)


def _measurement(test: MeasurementTest, findings: Findings) -> Judgement:
    try:
        found = read_number(test.number, findings.folder)
    except Unmeasured as error:
        return Judgement("not_testable", str(error))
    return _against(found, test, test.direction, test.than)


def _ratio(test: RatioTest, findings: Findings) -> Judgement:
    try:
        ratio = quotient(
            read_number(test.numerator, findings.folder),
            read_number(test.denominator, findings.folder),
        )
        if test.factor is not None:
            ratio = product(ratio, read_number(test.factor, findings.folder))
    except (Unmeasured, ValueError) as error:
        return Judgement("not_testable", str(error))
    return _against(ratio, test, test.direction, 1.0)


def _against(
    found: Interval, test: Expected, direction: OneSided | None, than: float | None
) -> Judgement:
    if direction is None or than is None:
        match size_of(found, test):
            case "within":
                return Judgement("holds", "lies within the claimed range", found)
            case "outside":
                return Judgement("contradicted", "lies outside the claimed range", found)
            case _:
                return Judgement("undecided", "lies across an end of the claimed range", found)
    above = direction in ("more", "not_less")
    # A value exactly at the limit is neither more nor less.
    if direction in ("more", "less"):
        holds = found.low > than if above else found.high < than
        fails = found.high <= than if above else found.low >= than
    else:
        holds = found.low >= than if above else found.high <= than
        fails = found.high < than if above else found.low > than
    if fails:
        return Judgement("contradicted", f"is not {WORDS[direction]} than {than:g}", found)
    if not holds:
        return Judgement("undecided", f"lies across {than:g}", found)
    return _with_size(found, test, f"is {WORDS[direction]} than {than:g}")


def _with_size(found: Interval, test: Expected, reason: str) -> Judgement:
    """The judgement of a test whose direction holds."""
    if test.at_least is None and test.at_most is None:
        return Judgement("holds", reason, found)
    match size_of(found, test):
        case "within":
            return Judgement("holds", f"{reason}, and the size lies within the claim's", found)
        case "outside":
            return Judgement("size_differs", f"{reason}, but the size differs", found)
        case _:
            reason = f"{reason}; the interval lies across an end of the claimed size"
            return Judgement("undecided", reason, found)


def trend(test: TrendTest, findings: Findings) -> Judgement:
    """Whether a family's curve moves in the direction that the test claims."""
    curve = findings.curves[test.family]
    values = [
        (point.value, size)
        for point in curve.points
        if (size := _quantity(point, test.quantity)) is not None
    ]
    if len(values) < FEWEST_MEMBERS:
        few = f"only {len(values)} of {len(curve.points)} values have this quantity"
        return Judgement("not_testable", few if curve.points else curve.note)
    try:
        return _follow(test, values, findings.margin)
    except ValueError as error:
        return Judgement("not_testable", str(error))


def _follow(test: TrendTest, values: list[tuple[float, Interval]], margin: float) -> Judgement:
    """Whether sizes move in the direction of the test over their values; ValueError if one is 0."""
    if test.until_best:
        values = _until_best(values)
    if test.quantity == "all_reduces":
        margin = 0.0  # counted, so any difference is one
    wanted = 1 if test.direction == "rises" else -1
    whole = quotient(values[-1][1], values[0][1])
    for (start, before), (end, after) in pairwise(values):
        if _side(step := quotient(after, before), margin) == -wanted:
            turn = "falls" if wanted == 1 else "rises"
            reason = f"{turn} from {start:g} to {end:g} ({_show(step)})"
            return Judgement("contradicted", reason, whole)
    ends = f"from {values[0][0]:g} to {values[-1][0]:g}"
    side = _side(whole, margin)
    if side is None:
        return Judgement("undecided", f"no difference is shown {ends}", whole)
    if side != wanted:
        return Judgement("contradicted", f"stays level {ends}", whole)
    return Judgement("holds", f"{test.direction} {ends}", whole)


def _side(ratio: Interval, margin: float) -> int | None:
    """1 for a ratio above 1, -1 below, 0 for the same within ``margin``, null if undecided."""
    return SIGNS.get(verdict_of("throughput", ratio, margin))


def _until_best(values: list[tuple[float, Interval]]) -> list[tuple[float, Interval]]:
    """The values up to the best one; all of them if the first is the best."""
    best = max(range(len(values)), key=lambda index: values[index][1].median)
    return values[: best + 1] if best else values


def _quantity(point: FamilyPoint, quantity: FamilyQuantity) -> Interval | None:
    if not point.counts:
        return None
    match quantity:
        case "throughput":
            return point.throughput
        case "peak_memory":
            return point.peak_memory
        case "traffic":
            return point.traffic
        case "all_reduces":
            return None if point.all_reduces is None else exact(point.all_reduces)


def _show(interval: Interval) -> str:
    return f"{interval.median:.3g}, {interval.low:.3g} to {interval.high:.3g}"


class Unmeasured(LookupError):
    """A number missing from the results; the message says why."""


def read_number(number: Number, folder: Path) -> Interval:
    """The number in the results below ``folder``; Unmeasured if there is none.

    A single number is exact, a list of numbers gives their median and range, and an interval is
    used as it is; each with the uncertainty stated in the claim.
    """
    content = _read(number.target, folder)
    try:
        value = jmespath.search(number.value, content)
    except JMESPathError as error:
        # A function got null or a wrong type: its input was not measured.
        message = " ".join(str(error).split())
        raise Unmeasured(f"{number.target} has no number at {number.value}: {message}") from None
    found = _as_interval(value)
    if found is None:
        raise Unmeasured(f"{number.target} has no number at {number.value}")
    return widened(found, number.uncertainty)


def _read(target: str, folder: Path) -> Any:
    path = folder / Path(target).relative_to("results")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Unmeasured(f"{target} does not exist: no job of this study makes it") from None
    except (OSError, ValueError) as error:
        raise Unmeasured(f"{target} cannot be read: {error}") from None
    if isinstance(content, dict) and content.get("status", "ok") != "ok":
        reason = content.get("reason") or "no reason was given"
        raise Unmeasured(f"{target} ended {content['status']}: {reason}")
    return content


def _as_interval(value: Any) -> Interval | None:
    if isinstance(value, dict):
        try:
            return Interval.model_validate(value)
        except ValidationError:
            return None
    values = value if isinstance(value, list) else [value]
    if not values or not all(_is_number(item) for item in values):
        return None
    return range_of(values) if len(values) > 1 else exact(values[0])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


SIGNS: dict[Verdict, int] = {"FASTER": 1, "MORE": 1, "SAME": 0, "SLOWER": -1, "LESS": -1}
"""Direction of each verdict; undecided ones have none."""


WORDS: dict[str, str] = {
    "more": "more",
    "less": "less",
    "same": "the same",
    "not_more": "no more",
    "not_less": "no less",
}

QUANTITIES: dict[str, str] = {
    "throughput": "Throughput",
    "peak_memory": "Peak memory",
    "traffic": "Bytes sent per step",
    "all_reduces": "All-reduces per step",
}


def what_of(test: ClaimTest, curves: Mapping[str, FamilyCurve]) -> str:
    """Subject of a test."""
    match test:
        case ComparisonTest():
            return f"{QUANTITIES[test.quantity]} of {test.variant} over {test.reference}"
        case CertificateTest():
            return f"Certificate of {test.variant}"
        case MeasurementTest() | RatioTest():
            return test.what
        case TrendTest():
            title = curves[test.family].title
            return f"{QUANTITIES[test.quantity]} by {title[0].lower()}{title[1:]} ({test.family})"


def expected_of(test: ClaimTest) -> str:
    """Expected result of a test."""
    match test:
        case CertificateTest():
            return "trains the same model"
        case TrendTest():
            return test.direction + (" up to the best value" if test.until_best else "")
        case MeasurementTest():
            direction = f"{WORDS[test.direction]} than {test.than:g}" if test.direction else ""
        case ComparisonTest() | RatioTest():
            direction = WORDS[test.direction] if test.direction else ""
    bounds = [
        f"{words} {bound:g}"
        for words, bound in (("at least", test.at_least), ("at most", test.at_most))
        if bound is not None
    ]
    return ", ".join(filter(None, [direction, " and ".join(bounds)]))


def files_of(test: ClaimTest, results: StudyResults) -> list[str]:
    """The result files that a test reads."""
    match test:
        case ComparisonTest(quantity="throughput"):
            found = results.by_pair.get(Pair(test.variant, test.reference))
            return [f"results/{(found and found.record) or 'comparisons.json'}"]
        case ComparisonTest():
            return [f"results/runs/{v}/metrics.json" for v in (test.variant, test.reference)]
        case CertificateTest():
            return [f"results/equivalence/{test.variant}.json"]
        case TrendTest():
            return ["results/families.json"]
        case _:
            return list(dict.fromkeys(number.target for number in numbers_of(test)))


def obstacle_to(test: ClaimTest, needs: Sequence[Needs], findings: Findings) -> str | None:
    """Why a test cannot be made here; null if it can."""
    results = findings.results
    repeats = [repeat for result in results.variants.values() for repeat in result.repeats]
    for need in needs:
        if unmet := _unmet(need, [repeat for repeat in repeats if repeat.status == "ok"]):
            return unmet
    if isinstance(test, TrendTest):
        return None
    named = dict.fromkeys(variants_of(test).values())
    if missing := [name for name in named if name not in results.variants]:
        return f"the study does not run {' and '.join(missing)} (add to its variants)"
    ended = [results.variants[name] for name in named if results.variants[name].status != "ok"]
    if ended:
        first = ended[0]
        reason = first.reason or "no reason was given"
        return f"{first.variant} ended {first.status}: {reason}"
    return None


def doubt_about(test: ClaimTest, results: StudyResults) -> str | None:
    """Why the variants' numbers are no evidence: one does not train the same model."""
    if isinstance(test, CertificateTest):
        return None
    for name in variants_of(test).values():
        certificate = results.certificates[name]
        if certificate.status == "not_equivalent":
            return f"{name} does not train the same model: {certificate.reason}"
        if certificate.status not in ("equivalent", "different"):
            return f"{name} has no certificate that it trains the same model"
    return None


def _unmet(needs: Needs, repeats: Iterable[Repeat]) -> str | None:
    topologies = [(r.topology.device, _devices(r)) for r in repeats if r.topology is not None]
    fitting = [count for device, count in topologies if needs.device in (None, device)]
    if max(fitting, default=0) >= needs.devices:
        return None
    if not topologies:
        return "no run of the study ended well"
    noun = {"cuda": "GPU", "cpu": "CPU device", None: "device"}[needs.device]
    wanted = f"needs {needs.devices} {noun}s" if needs.devices > 1 else f"needs a {noun}"
    if not fitting:
        kinds = {"cuda": "GPUs", "cpu": "the CPU"}
        return f"{wanted}; the study ran on {kinds[topologies[0][0]]}"
    return f"{wanted}; no run of the study used more than {max(fitting)}"


def _devices(repeat: Repeat) -> int:
    """Devices of a run; a single DataParallel process drives several."""
    assert repeat.topology is not None
    return max(repeat.topology.world_size, len({(m.rank, m.device) for m in repeat.memory}))
