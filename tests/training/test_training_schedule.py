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


@pytest.mark.parametrize(
    ("factor", "step", "d_model", "times"),
    [(1.0, 4_000, 512, 1), (1.0, 1_000, 512, 0.25), (1.0, 16_000, 512, 0.5), (2.0, 4_000, 128, 4)],
)
def test_noam_has_the_values_of_the_paper(factor, step, d_model, times):
    rate = learning_rate(Noam(factor=factor, warmup=4_000), step, 9, d_model)
    assert rate == pytest.approx(times / math.sqrt(512 * 4_000))


@steady
@given(warmup=st.integers(1, 40), steps=st.integers(50, 90))
def test_noam_peaks_at_the_end_of_its_warm_up(warmup, steps):
    values = rates(Noam(warmup=warmup), steps)
    assert values.index(max(values)) == warmup - 1
    # The rate is linear before, and falls with the inverse square root after.
    assert values[0] * warmup == pytest.approx(values[warmup - 1])
    assert values[-1] * math.sqrt(steps / warmup) == pytest.approx(values[warmup - 1])


ROOT = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("kind", "peak", "warmup", "expected"),
    [
        (Linear, 8.0, 4, [2, 4, 6, 8, 6, 4, 2, 0]),
        (Linear, 4.0, 0, [3, 2, 1, 0]),
        (Constant, 3.0, 3, [1, 2, 3, 3, 3, 3]),
        (Constant, 3.0, 0, [3, 3, 3]),
        (Cosine, 2.0, 2, [1, 2, 1 + ROOT, 1, 1 - ROOT, 0]),
        (Cosine, 2.0, 0, [1 + ROOT, 1, 1 - ROOT, 0]),
    ],
)
def test_other_schedules_have_their_values(kind, peak, warmup, expected):
    spec = kind(kind=kind.__name__.lower(), peak=peak, warmup=warmup)
    assert rates(spec, len(expected)) == pytest.approx(expected)


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
    # The rate rises to the peak and never rises again.
    assert values[:warmup] == sorted(values[:warmup])
    assert values[warmup:] == sorted(values[warmup:], reverse=True)
