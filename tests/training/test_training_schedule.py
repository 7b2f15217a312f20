"""Learning rates against their closed forms."""

import math

import pytest

from schemas.config.training import Constant, Cosine, Linear, Noam
from transformer_core.training.optimizer import learning_rate


@pytest.mark.parametrize(
    ("factor", "step", "d_model", "times"),
    [(1.0, 4_000, 512, 1), (1.0, 1_000, 512, 0.25), (1.0, 16_000, 512, 0.5), (2.0, 4_000, 128, 4)],
)
def test_noam_has_the_values_of_the_paper(factor, step, d_model, times):
    rate = learning_rate(Noam(factor=factor, warmup=4_000), step, 9, d_model)
    assert rate == pytest.approx(times / math.sqrt(512 * 4_000))


ROOT = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("kind", "peak", "warmup", "expected"),
    [
        (Linear, 8.0, 4, [2, 4, 6, 8, 6, 4, 2, 0]),
        (Linear, 4.0, 0, [3, 2, 1, 0]),
        (Linear, 4.0, 4, [1, 2, 3, 4]),
        (Constant, 3.0, 3, [1, 2, 3, 3, 3, 3]),
        (Constant, 3.0, 0, [3, 3, 3]),
        (Cosine, 2.0, 2, [1, 2, 1 + ROOT, 1, 1 - ROOT, 0]),
        (Cosine, 2.0, 0, [1 + ROOT, 1, 1 - ROOT, 0]),
    ],
)
def test_other_schedules_have_their_values(kind, peak, warmup, expected):
    spec = kind(kind=kind.__name__.lower(), peak=peak, warmup=warmup)
    steps = len(expected)
    found = [learning_rate(spec, step, steps, 512) for step in range(1, steps + 1)]
    assert found == pytest.approx(expected)
