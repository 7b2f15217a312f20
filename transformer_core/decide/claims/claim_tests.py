"""One test of a claim, judged by what was measured."""

from collections.abc import Sequence

from schemas.config.claims import (
    CertificateTest,
    ClaimTest,
    ComparisonTest,
    Direction,
    Expected,
    MeasurementTest,
    Needs,
    OneSided,
    RatioTest,
    TrendTest,
    variants_of,
)
from schemas.results import Evidence, Interval
from transformer_core.certify.certificates.deviations import in_short
from transformer_core.decide.claims.claim_numbers import Unmeasured, read_number
from transformer_core.decide.claims.evidence_words import WORDS, expected_of, files_of, what_of
from transformer_core.decide.claims.findings import SIGNS, Findings, Judgement
from transformer_core.decide.claims.obstacles import doubt_about, obstacle_to
from transformer_core.decide.claims.trend_tests import trend
from transformer_core.decide.statistics.interval_arithmetic import product, quotient

_HOLD: dict[Direction, set[int]] = {
    "more": {1},
    "less": {-1},
    "same": {0},
    "not_more": {-1, 0},
    "not_less": {0, 1},
}


def judge(test: ClaimTest, needs: Sequence[Needs], findings: Findings) -> Evidence:
    """What ``test`` finds, if the runs of the study had all that ``needs`` asks for."""
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
        files=files_of(test),
    )


def _observed(test: ClaimTest, findings: Findings) -> Interval | None:
    """The number of a test that decides nothing here: this machine is not what is claimed of."""
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
    pair = test.variant, test.reference
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
        # Counted, and the reference has none: a direction without a size.
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
    # What lies exactly at the limit is no more and no less.
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
            return Judgement("size_differs", f"{reason}, but the size is another", found)
        case _:
            reason = f"{reason}; the interval lies across an end of the claimed size"
            return Judgement("undecided", reason, found)
