"""Activation checkpointing and the chunked loss find the same gradients under every strategy."""

from typing import Any

import pytest

from schemas.base import merge
from schemas.config.run_spec import RunSpec
from tests.parallel.gradient_cases import (
    Case,
    Found,
    assert_same,
    find,
    find_on_ranks,
    reference,
    spec_of,
)

pytestmark = pytest.mark.slow

CHEAPER = {
    "checkpoint": {"model": {"checkpoint": "layers"}},
    "chunks": {"training": {"loss": {"kind": "chunked", "rows": 3}}},
}
STRATEGIES = {
    "ddp": {"kind": "ddp", "bucket_mb": 0.01},
    "fsdp": {"kind": "fsdp"},
    "central": {"kind": "central", "local_loss": True},
}


def cheaper(name: str, parallel: dict[str, Any]) -> RunSpec:
    plain = spec_of(parallel=parallel).model_dump(mode="json")
    return RunSpec.model_validate(merge(plain, CHEAPER[name]))


CASES = {
    f"{strategy}-{name}": Case(cheaper(name, parallel), steps=2)
    for strategy, parallel in STRATEGIES.items()
    for name in CHEAPER
}


@pytest.fixture(scope="module")
def found() -> dict[str, list[Found]]:
    return find_on_ranks(CASES, 2)


@pytest.mark.parametrize("name", CHEAPER)
def test_one_process(name: str) -> None:
    assert_same(find(cheaper(name, {"kind": "single"})), reference(), 1e-6)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(found: dict[str, list[Found]], case: str) -> None:
    main, expected = found[case][0], reference()
    if case.startswith("fsdp"):
        # Each rank has its rows of the gradients; their norm is that of all.
        assert main.loss == pytest.approx(expected.loss, rel=1e-5)
        assert main.norm == pytest.approx(expected.norm, rel=1e-5)
    else:
        assert_same(main, expected, 1e-6)
