"""What a test of a claim is about, what it expects and where its numbers stand, in words."""

from collections.abc import Mapping

from schemas.config.claims import (
    CertificateTest,
    ClaimTest,
    ComparisonTest,
    MeasurementTest,
    RatioTest,
    TrendTest,
    numbers_of,
)
from schemas.results import FamilyCurve

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
    """What a test is about."""
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
    """What a test expects to find."""
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


def files_of(test: ClaimTest) -> list[str]:
    """The results that a test reads."""
    match test:
        case ComparisonTest(quantity="throughput"):
            return [f"results/pairs/{test.reference}/{test.variant}.json"]
        case ComparisonTest():
            return [f"results/runs/{v}/metrics.json" for v in (test.variant, test.reference)]
        case CertificateTest():
            return [f"results/equivalence/{test.variant}.json"]
        case TrendTest():
            return ["results/families.json"]
        case _:
            return list(dict.fromkeys(number.target for number in numbers_of(test)))
