"""Which inputs of a ReLU are 0 but for rounding."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from transformer_core.certify.checker import NEAR, NEAR_SINGLE, Checker
from transformer_core.certify.number_formats import SINGLE, Format
from transformer_core.certify.plain_models import NONE_DROPPED

BF16 = Format(torch.float32, unit=2.0**-8)


class FakeExact:
    """A model, one element of whose gradient a gate moves."""

    def __init__(self) -> None:
        self.gates: list[float] = []

    def loss_and_gradients(self, weights: Any, batches: Any, form: Format, drops: Any) -> Any:
        self.gates.append(form.gate)
        return 1.0, {"weight": torch.tensor([1.0, 0.0, 0.01], dtype=torch.float64)}


def kinks(exact: FakeExact, form: Format, nearest: float) -> float:
    gradient = {"weight": torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)}
    checker: Any = SimpleNamespace(exact=exact, form=form)
    found = Checker._kinks(checker, {}, (), NONE_DROPPED, gradient, SINGLE, nearest)  # type: ignore[arg-type]
    return found["weight"]


@pytest.mark.parametrize(("form", "near"), [(SINGLE, NEAR_SINGLE), (BF16, NEAR)])
def test_both_sides_are_tried_where_an_input_is_near(form: Format, near: float) -> None:
    exact = FakeExact()
    nearest = 0.9 * near * form.unit
    assert kinks(exact, form, nearest) == pytest.approx(0.02, rel=1e-3)
    assert exact.gates == [near * form.unit, -near * form.unit]


@pytest.mark.parametrize(("form", "near"), [(SINGLE, NEAR_SINGLE), (BF16, NEAR)])
def test_nothing_is_widened_where_none_is_near(form: Format, near: float) -> None:
    exact = FakeExact()
    assert kinks(exact, form, 1.1 * near * form.unit) == 0.0
    assert not exact.gates


def test_sums_in_32_bits_round_away_more_than_their_format() -> None:
    """As many products as a small model has in a sum, one after the other, as some kernels add."""
    torch.manual_seed(0)
    products = torch.randn(20_000, 128)
    added = torch.zeros(20_000)
    for column in products.T:
        added = added + column
    exact = products.double().sum(1)
    size = float(exact.square().mean().sqrt())
    off = (added.double() - exact).abs() / (size * SINGLE.unit)
    assert float(off.square().mean().sqrt()) == pytest.approx((128 / 6) ** 0.5, rel=0.3)
    assert NEAR < float(off.max()) < 2 * NEAR_SINGLE
