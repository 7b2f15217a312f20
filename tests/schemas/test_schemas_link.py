"""Links: bandwidths as text, and the hosts that they join."""

import pytest
from pydantic import TypeAdapter

from schemas.config.parallel import Bandwidth, show_bandwidth
from schemas.config.study import Study
from schemas.config.variants import Variant
from tests.refusals import problem_in
from transformer_core.study.resolve import resolve

LINK = {"bandwidth": "100Mbit/s"}


@pytest.mark.parametrize(
    ("text", "bits"),
    [("100Mbit/s", 1e8), ("1 Gbit/s", 1e9), ("2.5Gbit/s", 2.5e9), ("64kbit/s", 64e3), (8.0, 8.0)],
)
def test_bandwidths_are_bits_per_second(text, bits):
    assert TypeAdapter(Bandwidth).validate_python(text) == bits


@pytest.mark.parametrize("text", ["100", "100Mbps", "100 MB/s", "-1Mbit/s", "Mbit/s", "0bit/s"])
def test_what_is_no_bandwidth_is_refused_with_an_example(text):
    machine = {"nodes": 2, "link": {"bandwidth": text}}
    problem = problem_in(Study, {"name": "s", "variants": ["ddp"], "machine": machine})
    assert problem.field == "machine.link.bandwidth"
    assert "Mbit/s" in problem.remedy or "above 0" in problem.remedy


@pytest.mark.parametrize(
    ("bits", "text"),
    [(1e8, "100 Mbit/s"), (1e9, "1 Gbit/s"), (2.5e9, "2.5 Gbit/s"), (7, "7 bit/s")],
)
def test_bandwidths_are_shown_in_the_unit_that_suits_them(bits, text):
    assert show_bandwidth(bits) == text


def test_a_single_run_has_no_link():
    study = Study.model_validate(
        {"name": "s", "variants": ["one"], "machine": {"nodes": 2} | {"link": LINK}}
    )
    variant = Variant(equivalence="tolerance", summary="One process.")
    assert resolve(study, "one", {"one": variant}).machine.link is None
