"""Headroom, with times, rates and profiles that can be worked out by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
from pair_builders import session, side
from small_training import small_spec

from schemas.results import Bandwidth, OperatorClass
from tests.records import record
from transformer_core.decide.utilisation import headroom, topology_of
from transformer_core.measure.session_ratio import step_seconds


def use(name: str, time: int, flops: int | None, size: int | None) -> OperatorClass:
    counts = {"count": 1, "time_ns": time, "flops": flops, "bytes": size, "counted_ns": time}
    return record(OperatorClass, operator_class=name, **counts)


def profile(*uses: OperatorClass, idle: float | None = 0.0) -> Any:
    """Of two steps on one device."""
    summary = SimpleNamespace(operators=list(uses), idle=idle)
    return SimpleNamespace(summary=summary, devices=[SimpleNamespace(steps=[0, 1])])


def roofline(threads: int = 1) -> Any:
    rate = SimpleNamespace(format="fp32", threads=threads, flops_per_second=1e9, reason=None)
    memory = [
        Bandwidth(operation=name, threads=threads, bytes_per_second=speed)
        for name, speed in (("copy", 0.5e9), ("triad", 1e9))
    ]
    return SimpleNamespace(
        status="ok", reason=None, kind="cpu", matrix=[rate], memory=memory, vendor=None
    )


TOPOLOGY: Any = side("baseline").topology


def test_every_class_is_compared_with_the_longer_of_its_two_limits():
    traced = profile(
        use("element_wise", 2_000, 10_000_000, 60_000_000),
        use("contraction", 6_000, 160_000_000, 40_000_000),
        use("other", 2_000, None, None),
        idle=0.25,
    )
    found = headroom("single", small_spec(), TOPOLOGY, 0.2, traced, roofline())
    assert (found.name, found.seconds) == ("single", 0.2)
    assert [part.name for part in found.parts] == ["contraction", "element_wise", "other"]
    products, element_wise, other = found.parts
    # Three quarters of 0.2 s are shared as 6 : 2 : 2; the limits are of one of two steps.
    assert products.seconds == pytest.approx(0.09)
    assert (products.products, products.traffic) == (0.08, 0.02)
    assert products.left == pytest.approx(0.01)
    assert element_wise.least == 0.03
    assert element_wise.left == pytest.approx(0.0)
    assert (other.least, other.left) == (None, None)
    assert found.idle == pytest.approx(0.05)
    assert (found.products, found.traffic) == pytest.approx((0.085, 0.05))
    assert sum(part.seconds for part in found.parts) + found.idle == pytest.approx(0.2)


def test_without_a_measured_rate_or_events_there_is_no_headroom():
    one = use("contraction", 1, 1, 1)
    assert headroom("x", small_spec(), TOPOLOGY, 1.0, profile(one, idle=None), roofline()).idle == 0
    assert headroom("x", small_spec(), TOPOLOGY, 1.0, profile(one), roofline(7)) is None
    unmeasured = roofline()
    unmeasured.matrix[0].flops_per_second = None
    assert headroom("x", small_spec(), TOPOLOGY, 1.0, profile(one), unmeasured) is None
    assert headroom("x", small_spec(), TOPOLOGY, 1.0, profile(), roofline()) is None


def test_the_time_of_a_step_is_that_of_its_turns():
    sessions = [session(2.0, reference="baseline", variant="best", base=1000.0)]
    windows = [w for turn in sessions[0].rounds for w in turn.windows if w.side == "best"]
    inside = [w.seconds / 2 for w in windows]
    assert min(inside) < step_seconds(sessions, "best") < max(inside)
    assert step_seconds(sessions, "nobody") is None
    assert topology_of(sessions, "best") == sessions[0].sides[1].topology
    assert topology_of([], "best") is None
