"""How long messages and collective operations take over a link."""

import pytest

from schemas.config.parallel import LinkModel
from transformer_core.parallel.link_times import (
    all_reduce_seconds,
    burst_bytes,
    burst_seconds,
    gather_seconds,
)


def test_a_ring_costs_each_device_the_same_however_many_there_are():
    """2 (p - 1) / p of the bytes, and 2 (p - 1) latencies (Patarasuk and Yuan, 2009)."""
    link = LinkModel(bandwidth=8e6)
    assert all_reduce_seconds(link, 1e6, 1) == 0
    assert all_reduce_seconds(link, 1e6, 2) == pytest.approx(1.0)
    assert all_reduce_seconds(link, 1e6, 4) == pytest.approx(1.5)
    assert all_reduce_seconds(link, 1e6, 1024) == pytest.approx(2 * 1023 / 1024)
    slow = LinkModel(bandwidth=8e6, latency=0.01)
    assert all_reduce_seconds(slow, 0, 4) == pytest.approx(2 * 3 * 0.01)


def test_a_tree_takes_few_steps_with_all_bytes():
    tree = LinkModel(bandwidth=8e6, latency=0.01, algorithm="tree")
    for devices, levels in [(2, 1), (3, 2), (4, 2), (5, 3), (1024, 10)]:
        assert all_reduce_seconds(tree, 1e6, devices) == pytest.approx(2 * levels * 1.01)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    link = LinkModel(bandwidth=1e9, latency=1e-4)
    for devices in (2, 3, 8):
        assert all_reduce_seconds(link, 1e6, devices) == pytest.approx(
            2 * gather_seconds(link, 1e6, devices)
        )


def test_a_burst_is_a_millisecond_of_a_fast_link_and_a_few_packets_of_a_slow_one():
    assert burst_bytes(1e9) == 125_000
    assert burst_seconds(1e9) == pytest.approx(0.001)
    assert burst_bytes(1e6) == 16 * 1024
    assert burst_seconds(1e6) == pytest.approx(0.131, abs=0.001)
