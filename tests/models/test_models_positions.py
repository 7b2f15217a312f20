"""Sinusoidal positions."""

import math

import pytest
import torch

from transformer_core.models.positions import Positions, sinusoidal_positions


@pytest.mark.parametrize(
    ("position", "column"), [(0, 0), (0, 1), (3, 4), (7, 5), (299, 0), (50, 9)]
)
def test_follows_the_formula(position, column):
    angle = position / 10_000 ** (2 * (column // 2) / 10)
    expected = math.cos(angle) if column % 2 else math.sin(angle)
    assert sinusoidal_positions(300, 10)[position, column].item() == pytest.approx(
        expected, abs=1e-4
    )


def test_grows_to_any_length_and_starts_anywhere():
    positions, table = Positions(8, length=4), sinusoidal_positions(100, 8)
    for length in (3, 5, 40, 2):
        assert torch.equal(positions(torch.zeros(1, length, 8))[0], table[:length])
    assert torch.equal(positions(torch.zeros(2, 10, 8), start=75)[1], table[75:85])
