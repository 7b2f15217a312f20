"""Every strategy finds the gradient of the global batch."""

import pytest

from tests.parallel.gradient_cases import (
    FULL,
    LAST,
    Case,
    Found,
    assert_same,
    find_on_ranks,
    reference,
    spec_of,
)

pytestmark = pytest.mark.slow

EXACT = 1e-6  # another order of float32 sums
SMALL = 0.01  # MiB: several buckets even in a tiny model

STRATEGIES = {
    "ddp": ({"kind": "ddp"}, EXACT),
    "ddp_small_buckets": ({"kind": "ddp", "bucket_mb": SMALL}, EXACT),
    "ddp_bucket_view": ({"kind": "ddp", "bucket_mb": SMALL, "bucket_view": True}, EXACT),
    "ddp_no_overlap": ({"kind": "ddp", "bucket_mb": SMALL, "overlap": False}, EXACT),
    "ddp_ring": ({"kind": "ddp", "bucket_mb": SMALL, "hook": {"kind": "ring"}}, EXACT),
    # Half of the last bit of a number with 11 (8) bits, and of every partial sum.
    "ddp_fp16": ({"kind": "ddp", "hook": {"kind": "compress", "dtype": "fp16"}}, 2 * 2**-11),
    "ddp_bf16": ({"kind": "ddp", "hook": {"kind": "compress", "dtype": "bf16"}}, 2 * 2**-8),
    "ddp_emulated_link": (
        {"kind": "ddp", "bucket_mb": SMALL, "hook": {"kind": "emulated_link", "bandwidth": 1e9}},
        EXACT,
    ),
    "ddp_powersgd_starts": ({"kind": "ddp", "hook": {"kind": "powersgd"}}, EXACT),
    "central": ({"kind": "central"}, EXACT),
    "central_local_loss": ({"kind": "central", "local_loss": True}, EXACT),
}
ACCUMULATIONS = {
    "once": {},
    "every": {"micro_batches": 3, "synchronise": "every"},
    "last": {"micro_batches": 3, "synchronise": "last"},
}
BATCHES = {"unequal": FULL, "empty": LAST}
DIVISIONS = [("once", "unequal"), ("every", "unequal"), ("last", "unequal"), ("last", "empty")]


def all_cases() -> dict[str, Case]:
    return {
        f"{strategy}-{accumulation}-{batch}": Case(
            # Twice: DDP makes its buckets anew after the first step.
            spec_of(parallel=parallel, training={"accumulation": ACCUMULATIONS[accumulation]}),
            BATCHES[batch],
            steps=2,
        )
        for strategy, (parallel, _) in STRATEGIES.items()
        for accumulation, batch in DIVISIONS
    }


@pytest.fixture(scope="module")
def found() -> dict[str, list[Found]]:
    """On three ranks, none of which has as many pairs as another."""
    return find_on_ranks(all_cases(), 3)


@pytest.fixture(scope="module")
def expected() -> dict[str, Found]:
    return {name: reference(number) for name, number in BATCHES.items()}


@pytest.mark.parametrize(("accumulation", "batch"), DIVISIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_are_those_of_one_process(
    found: dict[str, list[Found]],
    expected: dict[str, Found],
    strategy: str,
    accumulation: str,
    batch: str,
) -> None:
    parallel, tolerance = STRATEGIES[strategy]
    ranks = found[f"{strategy}-{accumulation}-{batch}"]
    # Only the first rank of the central scheme has gradients.
    for rank in ranks[:1] if parallel["kind"] == "central" else ranks:
        assert_same(rank, expected[batch], tolerance)
    for rank in ranks:
        assert rank.loss == ranks[0].loss
        assert rank.difference == 0.0


@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
def test_synchronised_micro_batches_are_counted(
    found: dict[str, list[Found]], accumulation: str
) -> None:
    (rank, *_) = found[f"ddp-{accumulation}-unequal"]
    assert rank.communication is not None
    counts = (rank.communication["micro_batches"], rank.communication["synchronised_micro_batches"])
    # Of two steps.
    assert counts == {"once": (2, 2), "every": (6, 6), "last": (6, 2)}[accumulation]
