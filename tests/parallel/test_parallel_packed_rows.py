"""Every strategy divides packed rows as it divides padded ones."""

import pytest

from schemas.config.batching import PackedRows
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


def packed_spec(parallel: dict, micro_batches: int = 1) -> RunSpec:
    """Rows of some three pairs on a rank, whose parts have four to thirteen."""
    training = {"accumulation": {"micro_batches": micro_batches}}
    spec = spec_of(parallel=parallel, training=training)
    rows = PackedRows(kind="packed", tokens=16)
    return spec.model_copy(update={"batching": spec.batching.model_copy(update={"rows": rows})})


CASES = {
    f"{name}_{micro_batches}_{batch}": Case(packed_spec(parallel, micro_batches), batch)
    for name, parallel in {
        "ddp": {"kind": "ddp"},
        "central": {"kind": "central"},
        "central_local_loss": {"kind": "central", "local_loss": True},
        "fsdp": {"kind": "fsdp"},
    }.items()
    for micro_batches, batch in [(1, FULL), (2, FULL), (2, LAST)]
    if name != "fsdp" or batch == FULL
}


@pytest.fixture(scope="module")
def expected() -> dict[int, Found]:
    """What one process finds with padded rows, by batch."""
    return {batch: reference(batch) for batch in (FULL, LAST)}


@pytest.mark.parametrize("batch", [FULL, LAST])
def test_one_process(expected: dict[int, Found], batch: int) -> None:
    assert_same(find(packed_spec({"kind": "single"}), batch), expected[batch], EXACT)


@pytest.fixture(scope="module")
def found() -> dict[str, list[Found]]:
    """What every case finds on 2 ranks: their processes are started once."""
    return find_on_ranks(CASES, 2)


@pytest.mark.parametrize("name", CASES)
def test_several_processes(
    found: dict[str, list[Found]], expected: dict[int, Found], name: str
) -> None:
    main, wanted = found[name][0], expected[CASES[name].batch]
    if name.startswith("fsdp"):  # whose gradients are in shards
        assert abs(main.loss - wanted.loss) <= EXACT * wanted.loss
        assert abs(main.norm - wanted.norm) <= EXACT * wanted.norm
    else:
        assert_same(main, wanted, EXACT)
