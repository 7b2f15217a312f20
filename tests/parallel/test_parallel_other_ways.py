"""Checkpointed layers, a chunked loss and packed rows give the same gradients, under every strategy."""

from typing import Any

import pytest

from schemas.base import merge
from schemas.config.run_spec import RunSpec
from tests.parallel.gradient_cases import (
    FULL,
    LAST,
    Case,
    Found,
    assert_same,
    find,
    find_on_ranks,
    reference,
    spec_of,
)

pytestmark = pytest.mark.slow

EXACT = 1e-6  # another order of float32 sums

WAYS: dict[str, dict[str, Any]] = {
    "checkpoint": {"model": {"checkpoint": "layers"}},
    "chunks": {"training": {"loss": {"kind": "chunked", "rows": 3}}},
    # Rows of some three pairs on a rank, whose parts have four to thirteen.
    "packed": {"batching": {"rows": {"kind": "packed", "tokens": 16}}},
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp", "bucket_mb": 0.01},
    "central": {"kind": "central"},
    "central_local_loss": {"kind": "central", "local_loss": True},
    "fsdp": {"kind": "fsdp"},
}


def other(way: str, parallel: dict[str, Any], micro_batches: int = 1) -> RunSpec:
    accumulation = {"training": {"accumulation": {"micro_batches": micro_batches}}}
    plain = spec_of(parallel=parallel, **accumulation).model_dump(mode="json")
    return RunSpec.model_validate(merge(plain, WAYS[way]))


CASES = {
    f"{strategy}-{way}-{micro_batches}-{batch}": Case(
        other(way, parallel, micro_batches), batch, steps=2
    )
    for strategy, parallel in STRATEGIES.items()
    for way in WAYS
    for micro_batches, batch in [(1, FULL), (2, FULL), (2, LAST)]
    if way == "packed" or micro_batches == 1
    if strategy != "fsdp" or batch == FULL
}


@pytest.fixture(scope="module")
def found() -> dict[str, list[Found]]:
    """What every case finds on 2 ranks: their processes are started once."""
    return find_on_ranks(CASES, 2)


@pytest.mark.parametrize("batch", [FULL, LAST])
@pytest.mark.parametrize("way", WAYS)
def test_one_process(way: str, batch: int) -> None:
    assert_same(find(other(way, {"kind": "single"}), batch), reference(batch), EXACT)


@pytest.mark.parametrize("name", CASES)
def test_two_ranks(found: dict[str, list[Found]], name: str) -> None:
    main, wanted = found[name][0], reference(CASES[name].batch)
    if name.startswith("fsdp"):
        # Each rank has its rows of the gradients; their norm is that of all.
        assert main.loss == pytest.approx(wanted.loss, rel=1e-5)
        assert main.norm == pytest.approx(wanted.norm, rel=1e-5)
    else:
        assert_same(main, wanted, EXACT)
