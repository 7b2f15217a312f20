"""Every strategy computes the gradient of the global batch in every way."""

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
    distance,
    find_on_ranks,
    reference,
    spec_of,
)

pytestmark = pytest.mark.slow

EXACT = 1e-6  # float32 sums in another order
SMALL = 0.01  # MiB: even a tiny model has several buckets

STRATEGIES = {
    "ddp": ({"kind": "ddp"}, EXACT),
    "ddp_small_buckets": ({"kind": "ddp", "bucket_mb": SMALL}, EXACT),
    "ddp_bucket_view": ({"kind": "ddp", "bucket_mb": SMALL, "bucket_view": True}, EXACT),
    "ddp_no_overlap": ({"kind": "ddp", "bucket_mb": SMALL, "overlap": False}, EXACT),
    "ddp_ring": ({"kind": "ddp", "bucket_mb": SMALL, "hook": {"kind": "ring"}}, EXACT),
    # Half of the last of 11 (or 8) bits is lost in each number and in each partial sum.
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
DIVIDED = [
    (strategy, *division)
    for strategy in STRATEGIES
    # What a hook does with a bucket does not depend on when buckets are reduced.
    for division in (DIVISIONS[1::2] if "hook" in STRATEGIES[strategy][0] else DIVISIONS)
]
WAYS: dict[str, dict[str, Any]] = {
    "checkpoint": {"model": {"checkpoint": "layers"}},
    "chunks": {"training": {"loss": {"kind": "chunked", "rows": 3}}},
    # A row holds about three pairs; the ranks' parts have four to thirteen pairs.
    "packed": {"batching": {"rows": {"kind": "packed", "tokens": 16}}},
    "packed_last": {
        "batching": {"rows": {"kind": "packed", "tokens": 16}},
        "training": {"accumulation": {"micro_batches": 2}},
    },
}
"""Other ways to compute the same gradients; "packed_last" takes the last batch."""
IN_OTHER_WAYS = {
    name: STRATEGIES[name][0] for name in ("ddp_small_buckets", "central", "central_local_loss")
} | {"fsdp": {"kind": "fsdp"}}
OTHER_CASES = [
    (strategy, way)
    for strategy in IN_OTHER_WAYS
    for way in WAYS
    if (strategy, way) != ("fsdp", "packed_last")  # all ranks but one would be empty
]


def in_another_way(way: str, parallel: dict[str, Any]) -> Case:
    plain = spec_of(parallel=parallel).model_dump(mode="json")
    batch = LAST if way == "packed_last" else FULL
    return Case(RunSpec.model_validate(merge(plain, WAYS[way])), batch, steps=2)


def all_cases() -> dict[str, Case]:
    """All cases, of two steps each: DDP rebuilds its buckets after the first."""
    cases = {
        f"{strategy}-{way}": in_another_way(way, IN_OTHER_WAYS[strategy])
        for strategy, way in OTHER_CASES
    }
    for strategy, accumulation, batch in DIVIDED:
        training = {"accumulation": ACCUMULATIONS[accumulation]}
        spec = spec_of(parallel=STRATEGIES[strategy][0], training=training)
        cases[f"{strategy}-{accumulation}-{batch}"] = Case(spec, BATCHES[batch], steps=2)
    return cases


@pytest.fixture(scope="module")
def found():
    """The results of three ranks with different numbers of pairs."""
    return find_on_ranks(all_cases(), 3)


@pytest.fixture(scope="module")
def expected():
    return {name: reference(number) for name, number in BATCHES.items()}


@pytest.mark.parametrize(("strategy", "way"), OTHER_CASES)
def test_other_ways_find_the_same(found, expected, strategy, way):
    main = found[f"{strategy}-{way}"][0]
    wanted = expected["empty" if way == "packed_last" else "unequal"]
    if strategy == "fsdp":
        # Each rank has only its own rows of the gradients, but the norm of all.
        assert main.loss == pytest.approx(wanted.loss, rel=1e-5)
        assert main.norm == pytest.approx(wanted.norm, rel=1e-5)
    else:
        assert_same(main, wanted, EXACT)


def having_gradients(ranks: list[Found], strategy: str) -> list[Found]:
    """The ranks with gradients: all, or only the first in the central scheme."""
    if STRATEGIES[strategy][0]["kind"] != "central":
        return ranks
    assert not any(rank.gradients for rank in ranks[1:])
    return ranks[:1]


@pytest.mark.parametrize(("strategy", "accumulation", "batch"), DIVIDED)
def test_gradients_are_those_of_one_process(found, expected, strategy, accumulation, batch):
    ranks = found[f"{strategy}-{accumulation}-{batch}"]
    for rank in having_gradients(ranks, strategy):
        assert_same(rank, expected[batch], STRATEGIES[strategy][1])
    for rank in ranks:
        assert rank.loss == ranks[0].loss
        assert rank.difference == 0.0


@pytest.mark.gpu(2)
def test_gradients_over_nccl(expected):
    machine = {"device": "cuda", "devices_per_node": 2}
    cases = {
        name: Case(spec_of(parallel=parallel, machine=machine), steps=2)
        for name, (parallel, _) in STRATEGIES.items()
    }
    for name, ranks in find_on_ranks(cases, 2, gpus=True).items():
        assert all(rank.difference == 0.0 for rank in ranks)
        for rank in having_gradients(ranks, name):
            widest = max(1e-5, 2.5 * STRATEGIES[name][1])
            assert distance(rank, expected["unequal"]) <= widest, name
