"""Learning rates against their closed forms."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config.training import AnySchedule, Constant, Cosine, Linear, Noam
from transformer_core.training.optimizer import learning_rate

steady = settings(deadline=None, derandomize=True)
D_MODEL = 512


def rates(spec: AnySchedule, steps: int) -> list[float]:
    return [learning_rate(spec, step, steps, D_MODEL) for step in range(1, steps + 1)]


def test_noam_has_the_values_of_the_paper():
    spec = Noam(factor=1.0, warmup=4_000)
    assert learning_rate(spec, 4_000, 9, 512) == pytest.approx(1 / math.sqrt(512 * 4_000))
    assert learning_rate(spec, 1_000, 9, 512) == pytest.approx(0.25 / math.sqrt(512 * 4_000))
    assert learning_rate(spec, 16_000, 9, 512) == pytest.approx(0.5 / math.sqrt(512 * 4_000))
    assert learning_rate(spec, 4_000, 9, 128) == pytest.approx(2 / math.sqrt(512 * 4_000))
    twice = Noam(factor=2.0, warmup=4_000)
    assert learning_rate(twice, 77, 9, 512) == 2 * learning_rate(spec, 77, 9, 512)


@steady
@given(warmup=st.integers(1, 40), steps=st.integers(50, 90))
def test_noam_peaks_at_the_end_of_its_warm_up(warmup, steps):
    values = rates(Noam(warmup=warmup), steps)
    assert values.index(max(values)) == warmup - 1
    # Linear before, the inverse square root after.
    assert values[0] * warmup == pytest.approx(values[warmup - 1])
    assert values[-1] * math.sqrt(steps / warmup) == pytest.approx(values[warmup - 1])


def test_linear():
    assert rates(Linear(kind="linear", peak=8.0, warmup=4), 8) == [2, 4, 6, 8, 6, 4, 2, 0]
    assert rates(Linear(kind="linear", peak=4.0), 4) == [3, 2, 1, 0]


def test_constant():
    assert rates(Constant(kind="constant", peak=3.0, warmup=3), 6) == [1, 2, 3, 3, 3, 3]
    assert rates(Constant(kind="constant", peak=3.0), 3) == [3, 3, 3]


def test_cosine():
    root = math.sqrt(0.5)
    expected = [1, 2, 1 + root, 1, 1 - root, 0]
    assert rates(Cosine(kind="cosine", peak=2.0, warmup=2), 6) == pytest.approx(expected)
    # Half-way the half cosine is at half its height.
    assert learning_rate(Cosine(kind="cosine", peak=2.0), 50, 100, D_MODEL) == pytest.approx(1.0)


@steady
@given(
    kind=st.sampled_from([Linear, Cosine, Constant]),
    warmup=st.integers(0, 30),
    more=st.integers(0, 30),
    peak=st.floats(1e-6, 10),
)
def test_no_rate_is_negative_or_above_the_peak(kind, warmup, more, peak):
    steps = max(1, warmup + more)
    values = rates(kind(kind=kind.__name__.lower(), peak=peak, warmup=warmup), steps)
    assert all(0 <= value <= peak * (1 + 1e-12) for value in values)
    if warmup:
        assert values[warmup - 1] == pytest.approx(peak)
    # It rises to the peak and does not rise again.
    assert values[:warmup] == sorted(values[:warmup])
    assert values[warmup:] == sorted(values[warmup:], reverse=True)
