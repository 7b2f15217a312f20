"""Times of a device's step while its neighbours compute, without communication."""

import math
from typing import Any

import pytest
from capture_builders import VOCABULARY, write_shards
from small_training import small_setup, small_spec

from schemas.config.run_spec import RunSpec
from schemas.results import ComputeRecord
from tests.orders import run_job
from transformer_core.measure.compute import different_work
from transformer_core.measure.compute_worker import StepTimes, Times, slowest, undisturbed
from transformer_core.study.reservations import work_of_a_device

pytestmark = pytest.mark.slow

MICRO_BATCHES = 2


def ddp(**sections: Any) -> RunSpec:
    base: dict[str, Any] = {
        "parallel": {"kind": "ddp"},
        "machine": {"device": "cpu", "devices_per_node": 2, "threads": 1},
    }
    return small_spec(**(base | sections))


def far(**sections: Any) -> RunSpec:
    """The same on two hosts."""
    link = {"nodes": 2, "devices_per_node": 1, "link": {"bandwidth": "1Mbit/s"}}
    return ddp(machine={"device": "cpu", "threads": 1} | link, **sections)


def accumulated(synchronise: str) -> RunSpec:
    accumulation = {"micro_batches": MICRO_BATCHES, "synchronise": synchronise}
    return ddp(training={"accumulation": accumulation})


def test_work_that_differs_only_in_communication_is_timed_once():
    same = [
        ddp(),
        ddp(variant="late", parallel={"kind": "ddp", "overlap": False}),
        ddp(variant="sharded", parallel={"kind": "fsdp"}),
        far(variant="far"),
    ]
    assert [spec.variant for spec in different_work(same)] == ["small"]
    assert work_of_a_device(accumulated("every")) == work_of_a_device(accumulated("last"))


@pytest.mark.parametrize(
    "other",
    [
        accumulated("last"),
        ddp(model={"kind": "transformer", "d_model": 32}),
        ddp(training={"precision": {"kind": "bf16"}}),
        ddp(training={"optimizer": {"kind": "sgd"}}),
        ddp(training={"clip_norm": 0}),
        ddp(machine={"device": "cpu", "threads": 1, "allocator": "default"}),
        ddp(batching={"kind": "fixed_size", "pairs": 16}),
        ddp(machine={"device": "cpu", "devices_per_node": 3, "threads": 1}),
    ],
)
def test_different_work_is_timed_separately(other):
    assert len(list(different_work([ddp(), other]))) == 2


def test_parts_of_a_step_add_up_to_no_more_than_the_step():
    training = {"accumulation": {"micro_batches": MICRO_BATCHES, "synchronise": "last"}}
    setup = small_setup(small_spec(training=training))
    times = StepTimes(setup)
    batches = setup.strategy.batches(setup.feed, 0, 0)
    for record in (False, True, True):
        times.step(next(batches), record)
    found = times.unfollow()
    times.step(next(batches), True)
    batches.close()
    assert all(map(math.isnan, times.times.ready[0])), "no hook is left"
    assert len(found.whole) == len(found.update) == 2
    assert len(found.forward) == len(found.backward) == len(found.ready) == 2 * MICRO_BATCHES
    for step, whole in enumerate(found.whole):
        own = slice(step * MICRO_BATCHES, (step + 1) * MICRO_BATCHES)
        parts = sum(found.forward[own]) + sum(found.backward[own]) + found.update[step]
        assert 0 < parts <= whole
    gradients = times.gradients(found.ready)
    assert sum(g.bytes for g in gradients) == sum(
        4 * parameter.numel() for parameter in setup.model.parameters()
    )
    seconds = [gradient.seconds for gradient in gradients]
    assert seconds == sorted(seconds)
    assert 0 < seconds[0] < seconds[-1] <= max(found.backward)
    # Backward begins at the output and ends in the encoder: the last layers of the decoder come
    # first, and embeddings belong to no layer.
    layers = [gradient.layer for gradient in gradients if gradient.layer is not None]
    assert layers[0] == max(layers)
    assert None in {gradient.layer for gradient in gradients}


def test_the_last_rank_determines_each_moment():
    early = Times([1.0], [2.0], [[0.5, 2.0]], [0.1], [3.2])
    late = Times([1.5], [1.0], [[0.25, 1.0]], [0.3], [2.9])
    both = slowest([early, late])
    assert (both.forward, both.update, both.whole) == ([1.5], [0.3], [3.2])
    assert both.backward == [1.5], "the first rank ends at 3"
    assert both.ready == [[0.25, 1.5]], "the first gradient at 1.75, the second at 3"
    assert slowest([early]) == early


def test_the_job_times_the_share_of_one_of_all_devices(tmp_path):
    data = write_shards(tmp_path / "data")
    files = []
    for spec in (far(), ddp(variant="near")):
        files.append(tmp_path / f"{spec.variant}.json")
        files[-1].write_text(spec.canonical_json())
    output = tmp_path / "compute.json"
    settings = {"steps": 2, "warmup_steps": 1}
    assert run_job("compute_times", specs=files, data=data, output=output, settings=settings) == 0
    (times,) = ComputeRecord.model_validate_json(output.read_text()).times
    assert (times.variant, times.status, times.micro_batches) == ("small", "ok", 1)
    assert times.topology.world_size == 2, "both devices work"
    assert times.topology.nodes == 1, "and nothing uses the link"
    # Eight pairs of 4 to 23 tokens and an end token, for two devices.
    assert times.source_tokens is not None
    assert 4 * 5 <= times.source_tokens <= 4 * 24
    assert times.vocabulary == VOCABULARY
    assert times.backward_seconds is not None
    assert times.gradients[-1].seconds > 0


def test_hooks_determine_the_share_of_backward_but_not_its_length():
    """A hook for each parameter makes backward on a GPU wait for the host."""
    followed = Times([1.0], [4.0, 4.0], [[1.0, 4.0], [2.0, 4.0]], [0.1], [5.1])
    plain = Times([1.0], [2.0, 2.0], [], [0.1], [3.1])
    found = undisturbed(followed, plain)
    assert (found.backward, found.ready) == ([2.0, 2.0], [[0.5, 2.0], [1.0, 2.0]])
