"""Verdicts from intervals and counts."""

import pytest
from claim_builders import interval

from transformer_core.decide.verdicts import traffic, verdict_of


@pytest.mark.parametrize(
    ("low", "high", "throughput", "memory"),
    [
        (1.03, 1.2, "FASTER", "MORE"),
        (0.8, 0.97, "SLOWER", "LESS"),
        (0.99, 1.01, "SAME", "SAME"),
        (1.001, 1.01, "SAME", "SAME"),
        (1.001, 1.03, "FASTER", "MORE"),
        (0.97, 0.999, "SLOWER", "LESS"),
        (0.97, 1.01, "UNDECIDED", "UNDECIDED"),
        (1.0, 1.03, "UNDECIDED", "UNDECIDED"),
        (1 / 1.02, 1.02, "SAME", "SAME"),
    ],
)
def test_verdict(low, high, throughput, memory):
    assert verdict_of("throughput", interval(low, high), 0.02) == throughput
    assert verdict_of("peak_memory", interval(low, high), 0.02) == memory
    assert verdict_of("traffic", interval(low, high), 0.02) == memory


@pytest.mark.parametrize(
    ("variant", "reference", "verdict", "ratio", "reason"),
    [
        (3, 2, "MORE", 1.5, ""),
        (2, 2, "SAME", 1.0, ""),
        (0, 2, "LESS", 0.0, ""),
        (5, 0, "MORE", None, "the reference has no traffic between processes"),
        (0, 0, "SAME", None, "neither has any traffic between processes"),
    ],
)
def test_counts_are_exact(variant, reference, verdict, ratio, reason):
    effect = traffic(variant, reference)
    assert (effect.verdict, effect.reason) == (verdict, reason)
    found = effect.ratio and (effect.ratio.low, effect.ratio.median, effect.ratio.high)
    assert found == (ratio if ratio is None else (ratio, ratio, ratio))
