"""Counting what there is to do in a step."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from _contenders import PUBLISHED
from step_counts import STEPS, count

SIZES = {
    "encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 64, "heads": 2, "dropout": 0.1
}  # fmt: skip


def test_flops_are_those_of_the_products_and_the_best_step_has_fewer_operators():
    found = {name: count(STEPS[name], SIZES, 3, 7, 50) for name in STEPS}
    n, d, v = 21, 16, 50
    products = n * (4 + 8 + 2 * 8) * d * d + n * d * v  # by hand: projections, feed-forward, map
    attention = 3 * 2 * 3 * 7 * 7 * d
    assert found[PUBLISHED]["flops"] == 3 * 2 * (products + attention)
    assert found["best in bf16"]["operators"] < found["single in bf16"]["operators"]
    assert found["best in bf16"]["bytes"] < found[PUBLISHED]["bytes"]
