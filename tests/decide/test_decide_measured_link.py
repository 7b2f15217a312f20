"""A link from the times of its all-reduces."""

import pytest

from schemas.config.parallel import LinkModel
from transformer_core.decide.link_error import fit_link
from transformer_core.parallel.link_times import all_reduce_seconds

SIZES = [2.0**power for power in range(10, 26, 3)]


@pytest.mark.parametrize("devices", [2, 4])
def test_times_of_a_ring_give_its_link_back(devices):
    link = LinkModel(bandwidth=4e9, latency=30e-6)
    found = fit_link(SIZES, [all_reduce_seconds(link, size, devices) for size in SIZES], devices)
    assert (found.bandwidth, found.latency) == (pytest.approx(4e9), pytest.approx(30e-6))
    assert found.worst_residual < 1e-6
    assert (found.world_size, found.sizes) == (devices, len(SIZES))


def test_the_worst_residual_is_that_of_the_size_that_fits_least():
    link = LinkModel(bandwidth=4e9, latency=30e-6)
    times = [all_reduce_seconds(link, size, 2) for size in SIZES]
    times[2] *= 1.5
    found = fit_link(SIZES, times, 2)
    assert 0.2 < found.worst_residual < 0.4


def test_neither_is_negative():
    # Large messages that are slower by the byte would ask for a negative latency.
    found = fit_link([1e3, 1e5, 1e7], [1e-6, 2e-4, 4e-2], 2)
    assert found.latency >= 0
    assert found.bandwidth > 0


def test_too_little_gives_no_link():
    assert fit_link([1e3, 1e6], [1e-4, 1e-3], 2) is None
    assert fit_link([1e3, 1e3, 1e3], [1e-4] * 3, 2) is None
    assert fit_link(SIZES, [1e-3] * len(SIZES), 1) is None
    assert fit_link([], [], 2) is None


def test_times_without_any_slope_give_no_bandwidth():
    assert fit_link([1e3, 1e5, 1e7], [3e-2, 2e-2, 1e-2], 2) is None
