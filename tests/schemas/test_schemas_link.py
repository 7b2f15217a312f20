"""Links: bandwidths as text, and how long messages take."""

import pytest
from pydantic import TypeAdapter, ValidationError

from schemas.errors import from_validation
from schemas.link import Bandwidth, LinkModel, burst_bytes, burst_seconds, show_bandwidth
from schemas.resolve import resolve
from schemas.rules import violations
from schemas.study import RunSpec, Study, Variant

LINK = {"bandwidth": "100Mbit/s"}


@pytest.mark.parametrize(
    ("text", "bits"),
    [("100Mbit/s", 1e8), ("1 Gbit/s", 1e9), ("2.5Gbit/s", 2.5e9), ("64kbit/s", 64e3), (8.0, 8.0)],
)
def test_bandwidths_are_bits_per_second(text: str | float, bits: float) -> None:
    assert TypeAdapter(Bandwidth).validate_python(text) == bits


@pytest.mark.parametrize("text", ["100", "100Mbps", "100 MB/s", "-1Mbit/s", "Mbit/s", "0bit/s"])
def test_what_is_no_bandwidth_is_refused_with_an_example(text: str) -> None:
    machine = {"nodes": 2, "link": {"bandwidth": text}}
    with pytest.raises(ValidationError) as caught:
        Study.model_validate({"name": "s", "variants": ["ddp"], "machine": machine})
    (problem,) = from_validation(caught.value, Study, "study.yaml").problems
    assert problem.field == "machine.link.bandwidth"
    assert "Mbit/s" in problem.remedy or "above 0" in problem.remedy


@pytest.mark.parametrize(
    ("bits", "text"),
    [(1e8, "100 Mbit/s"), (1e9, "1 Gbit/s"), (2.5e9, "2.5 Gbit/s"), (7, "7 bit/s")],
)
def test_bandwidths_are_shown_in_the_unit_that_suits_them(bits: float, text: str) -> None:
    assert show_bandwidth(bits) == text


def test_a_ring_costs_each_device_the_same_however_many_there_are() -> None:
    """2 (p - 1) / p of the bytes, and 2 (p - 1) latencies (Patarasuk and Yuan, 2009)."""
    link = LinkModel(bandwidth=8e6)
    assert link.all_reduce_seconds(1e6, 1) == 0
    assert link.all_reduce_seconds(1e6, 2) == pytest.approx(1.0)
    assert link.all_reduce_seconds(1e6, 4) == pytest.approx(1.5)
    assert link.all_reduce_seconds(1e6, 1024) == pytest.approx(2 * 1023 / 1024)
    slow = LinkModel(bandwidth=8e6, latency=0.01)
    assert slow.all_reduce_seconds(0, 4) == pytest.approx(2 * 3 * 0.01)


def test_a_tree_takes_few_steps_with_all_bytes() -> None:
    tree = LinkModel(bandwidth=8e6, latency=0.01, algorithm="tree")
    for devices, levels in [(2, 1), (3, 2), (4, 2), (5, 3), (1024, 10)]:
        assert tree.all_reduce_seconds(1e6, devices) == pytest.approx(2 * levels * 1.01)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    link = LinkModel(bandwidth=1e9, latency=1e-4)
    for devices in (2, 3, 8):
        assert link.all_reduce_seconds(1e6, devices) == pytest.approx(
            2 * link.gather_seconds(1e6, devices)
        )


def test_a_single_run_has_no_link() -> None:
    study = Study.model_validate(
        {"name": "s", "variants": ["one"], "machine": {"nodes": 2} | {"link": LINK}}
    )
    variant = Variant(equivalence="tolerance", summary="One process.")
    assert resolve(study, "one", {"one": variant}).machine.link is None


def test_a_link_joins_two_hosts() -> None:
    spec = RunSpec.model_validate(
        {"variant": "v", "parallel": {"kind": "ddp"}, "machine": {"nodes": 3, "link": LINK}}
    )
    assert [(field, value) for field, value, _, _ in violations(spec)][:1] == [("machine.nodes", 3)]


def test_a_burst_is_a_millisecond_of_a_fast_link_and_a_few_packets_of_a_slow_one() -> None:
    assert burst_bytes(1e9) == 125_000
    assert burst_seconds(1e9) == pytest.approx(0.001)
    assert burst_bytes(1e6) == 16 * 1024
    assert burst_seconds(1e6) == pytest.approx(0.131, abs=0.001)
