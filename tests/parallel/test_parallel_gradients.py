"""Every strategy finds the gradient of the global batch, in every way of computing it, and a broken
one is caught."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.futures import Future

from schemas.base import merge
from schemas.config.run_spec import RunSpec
from tests.parallel.gradient_cases import (
    FULL,
    LAST,
    Case,
    ForgottenScale,
    Found,
    NeverSynchronises,
    assert_same,
    find,
    find_on_ranks,
    reference,
    spec_of,
)
from transformer_core.parallel.ddp import DdpStrategy
from transformer_core.parallel.hooks import Hook
from transformer_core.training.assemble import Setup

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
WAYS: dict[str, dict[str, Any]] = {
    "checkpoint": {"model": {"checkpoint": "layers"}},
    "chunks": {"training": {"loss": {"kind": "chunked", "rows": 3}}},
    # Rows of some three pairs on a rank, whose parts have four to thirteen.
    "packed": {"batching": {"rows": {"kind": "packed", "tokens": 16}}},
    "packed_last": {
        "batching": {"rows": {"kind": "packed", "tokens": 16}},
        "training": {"accumulation": {"micro_batches": 2}},
    },
}
"""Other ways to compute the same gradients; the last of them of the last batch."""
IN_OTHER_WAYS = {
    name: STRATEGIES[name][0] for name in ("ddp_small_buckets", "central", "central_local_loss")
} | {"fsdp": {"kind": "fsdp"}}
OTHER_CASES = [
    (strategy, way)
    for strategy in IN_OTHER_WAYS
    for way in WAYS
    if (strategy, way) != ("fsdp", "packed_last")  # whose ranks would all but one be empty
]


class DroppedBucket(Hook):
    """The second bucket is given back as it came."""

    def average(self, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        future: Future[torch.Tensor] = Future()
        buffer = bucket.buffer()
        if bucket.index() != 1:
            dist.all_reduce(buffer.div_(dist.get_world_size()))
        future.set_result(buffer)
        return future


def forget_scale(setup: Setup) -> None:
    setup.strategy.__class__ = ForgottenScale


def never_synchronise(setup: Setup) -> None:
    setup.strategy.__class__ = NeverSynchronises


def drop_bucket(setup: Setup) -> None:
    strategy = setup.strategy
    assert isinstance(strategy, DdpStrategy)
    assert strategy.module is not None
    DroppedBucket(strategy.traffic).register(strategy.module)


FAULTS = {
    "forgotten_scale": forget_scale,
    "never_synchronises": never_synchronise,
    "dropped_bucket": drop_bucket,
}


def in_another_way(way: str, parallel: dict[str, Any]) -> Case:
    plain = spec_of(parallel=parallel).model_dump(mode="json")
    batch = LAST if way == "packed_last" else FULL
    return Case(RunSpec.model_validate(merge(plain, WAYS[way])), batch, steps=2)


def all_cases() -> dict[str, Case]:
    ways = {
        f"{strategy}-{way}": in_another_way(way, IN_OTHER_WAYS[strategy])
        for strategy, way in OTHER_CASES
    }
    spec = spec_of(parallel={"kind": "ddp", "bucket_mb": SMALL})
    faulty = {name: Case(spec, steps=2, change=fault) for name, fault in FAULTS.items()}
    return (
        ways
        | faulty
        | {
            f"{strategy}-{accumulation}-{batch}": Case(
                # Two steps: DDP rebuilds its buckets after the first.
                spec_of(parallel=parallel, training={"accumulation": ACCUMULATIONS[accumulation]}),
                BATCHES[batch],
                steps=2,
            )
            for strategy, (parallel, _) in STRATEGIES.items()
            for accumulation, batch in DIVISIONS
        }
    )


@pytest.fixture(scope="module")
def found():
    """On three ranks, none of which has as many pairs as another."""
    return find_on_ranks(all_cases(), 3)


@pytest.fixture(scope="module")
def expected():
    return {name: reference(number) for name, number in BATCHES.items()}


def assert_all_same(ranks: list[Found], expected: Found, tolerance: float) -> None:
    for rank in ranks:
        assert_same(rank, expected, tolerance)


@pytest.mark.parametrize(("strategy", "way"), OTHER_CASES)
def test_other_ways_find_the_same(found, expected, strategy, way):
    main = found[f"{strategy}-{way}"][0]
    wanted = expected["empty" if way == "packed_last" else "unequal"]
    if strategy == "fsdp":
        # Each rank has its rows of the gradients; their norm is that of all.
        assert main.loss == pytest.approx(wanted.loss, rel=1e-5)
        assert main.norm == pytest.approx(wanted.norm, rel=1e-5)
    else:
        assert_same(main, wanted, EXACT)


@pytest.mark.parametrize("way", WAYS)
def test_one_process_finds_the_same_in_other_ways(expected, way):
    case = in_another_way(way, {"kind": "single"})
    wanted = expected["empty" if way == "packed_last" else "unequal"]
    assert_same(find(case.spec, case.batch), wanted, EXACT)


@pytest.mark.parametrize(("accumulation", "batch"), DIVISIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_are_those_of_one_process(found, expected, strategy, accumulation, batch):
    parallel, tolerance = STRATEGIES[strategy]
    ranks = found[f"{strategy}-{accumulation}-{batch}"]
    # Only the first rank of the central scheme has gradients.
    having = ranks[:1] if parallel["kind"] == "central" else ranks
    assert_all_same(having, expected[batch], tolerance)
    for rank in ranks:
        assert rank.loss == ranks[0].loss
        assert rank.difference == 0.0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(found, expected, fault):
    # The widest of the tolerances above.
    tolerance = max(tolerance for _, tolerance in STRATEGIES.values())
    with pytest.raises(AssertionError):
        assert_all_same(found[fault], expected["unequal"], tolerance)
