"""Sinusoidal positions."""

import copy
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


def test_adds_and_keeps_the_type():
    x = torch.randn(2, 3, 8, dtype=torch.bfloat16)
    result = Positions(8)(x)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(
        result.float(), x.float() + sinusoidal_positions(3, 8), rtol=0.02, atol=0.02
    )


def test_is_no_state():
    positions = Positions(8)
    positions(torch.zeros(1, 3, 8))
    assert not positions.state_dict()
    assert not list(positions.buffers())


def test_short_lived_replicas_leave_their_table_to_the_next():
    """DataParallel copies modules for each forward, attributes by reference."""
    positions = Positions(8)
    replica = copy.copy(positions)
    replica(torch.zeros(1, 3, 8))
    (table,) = positions._tables.values()
    copy.copy(positions)(torch.zeros(1, 3, 8))
    assert positions._tables[table.device] is table
