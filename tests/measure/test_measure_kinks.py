"""Inputs of a ReLU that are 0 except for rounding."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from transformer_core.certify.checker import NEAR_SINGLE, Checker, windows
from transformer_core.certify.number_formats import SINGLE, Format, to_bf16


class FakeChecker:
    """Checks a model in which a gate changes one element of the gradient."""

    def __init__(self) -> None:
        self.gates: list[tuple[float, ...]] = []

    def _passed(self, seen: Any, form: Format) -> Any:
        self.gates.append(form.gates)
        gradient = torch.tensor([1.0, 0.0, 0.01], dtype=torch.float64)
        return SimpleNamespace(gradients={"weight": gradient})


def kinks(checker: Any, near: list[float]) -> float:
    gradient = {"weight": torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)}
    seen: Any = None
    return Checker._kinks(checker, seen, gradient, SINGLE, near)["weight"]


def test_both_sides_of_every_relu_are_tried():
    checker = FakeChecker()
    assert kinks(checker, [0.1, 0.2]) == pytest.approx(0.02, rel=1e-3)
    assert checker.gates == [(0.1, 0.2), (-0.1, -0.2)]
    without_relu = FakeChecker()
    assert kinks(without_relu, []) == 0.0
    assert not without_relu.gates


def test_an_input_is_near_zero_within_the_rounding_of_its_layer():
    torch.manual_seed(0)
    right = [torch.randn(64, 40).double() for _ in range(2)]
    once = to_bf16(right[0])
    rounded = [once, to_bf16(right[1] + 10 * (once - right[0]))]
    first, second = windows(right, rounded)
    # Numbers are rounded by at most a unit round-off of themselves, and the largest are about 3.5.
    assert 2 * 2.0**-8 < first < 2 * 4 * 2.0**-8
    assert second > 5 * first
    assert windows(right, None) == [NEAR_SINGLE * SINGLE.unit] * 2


def test_sums_in_32_bits_lose_more_than_their_unit_roundoff():
    """For as many products as in a small model's sums, added one by one, as in some kernels."""
    torch.manual_seed(0)
    products = torch.randn(20_000, 128)
    added = torch.zeros(20_000)
    for column in products.T:
        added = added + column
    exact = products.double().sum(1)
    size = float(exact.square().mean().sqrt())
    off = (added.double() - exact).abs() / (size * SINGLE.unit)
    assert float(off.square().mean().sqrt()) == pytest.approx((128 / 6) ** 0.5, rel=0.3)
    assert float(off.max()) < 2 * NEAR_SINGLE
