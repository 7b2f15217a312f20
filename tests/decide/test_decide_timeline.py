"""Step times of many devices, worked out by hand for easy numbers."""

import pytest
from projection_builders import BACKWARD, FORWARD, LAYERS, UPDATE, compute, compute_times

from schemas.config.parallel import LinkModel
from transformer_core.decide.step_model import MIB, Bucket, Compute, buckets, step_seconds
from transformer_core.parallel.link_times import broadcast_seconds, scatter_seconds

ALONE = FORWARD + BACKWARD + UPDATE
PAIR = 2
"""Devices. Each sends as many bytes as it all-reduces."""


def link(seconds_per_mib: float) -> LinkModel:
    """On which an all-reduce of a MiB between two devices takes so long."""
    return LinkModel(bandwidth=8 * MIB / seconds_per_mib)


FAST, SLOW = link(0.125), link(1.0)
ALL_FAST, ALL_SLOW = 0.125 * LAYERS, 1.0 * LAYERS


def test_a_bucket_is_full_when_its_size_is_reached():
    gradients = compute().gradients
    assert buckets(gradients, 1) == [
        Bucket(MIB, 0.5),
        Bucket(MIB, 1),
        Bucket(MIB, 1.5),
        Bucket(MIB, 2),
    ]
    assert buckets(gradients, 1.5) == [Bucket(2 * MIB, 1.0), Bucket(2 * MIB, 2.0)]
    assert buckets(gradients, 3) == [Bucket(3 * MIB, 1.5), Bucket(MIB, 2.0)]
    assert buckets(gradients, 25) == [Bucket(4 * MIB, 2.0)]


@pytest.mark.parametrize(
    "strategy",
    ["ddp", "ddp_no_overlap", "accumulation_sync", "accumulation_no_sync", "fsdp", "central"],
)
def test_a_device_alone_talks_to_nobody(strategy):
    assert step_seconds(strategy, compute(), SLOW, 1) == ALONE


def test_a_fast_link_leaves_only_the_last_bucket_exposed():
    assert step_seconds("ddp", compute(), FAST, PAIR, 1) == pytest.approx(ALONE + 0.125)


def test_on_a_slow_link_buckets_queue_after_the_first():
    # The first is there after half a second; then the link is never idle.
    seconds = FORWARD + 0.5 + ALL_SLOW + UPDATE
    assert step_seconds("ddp", compute(), SLOW, PAIR, 1) == pytest.approx(seconds)


def test_one_large_bucket_overlaps_with_nothing():
    large = step_seconds("ddp", compute(), SLOW, PAIR, 25)
    assert large == pytest.approx(ALONE + ALL_SLOW)
    assert large == pytest.approx(step_seconds("ddp_no_overlap", compute(), SLOW, PAIR, 25))


def test_without_overlap_small_buckets_gain_nothing():
    seconds = step_seconds("ddp_no_overlap", compute(), SLOW, PAIR, 1)
    assert seconds == pytest.approx(ALONE + ALL_SLOW)


def test_a_latency_counts_once_for_each_message():
    late = LinkModel(bandwidth=FAST.bandwidth, latency=0.25)
    # Two messages of a ring of two for each bucket; buckets then take 0.625 s and queue.
    seconds = FORWARD + 0.5 + 4 * (0.125 + 2 * 0.25) + UPDATE
    assert step_seconds("ddp", compute(), late, PAIR, 1) == pytest.approx(seconds)


def test_half_the_bytes_take_half_the_time():
    half = step_seconds("ddp", compute(), SLOW, PAIR, 25, payload=0.5)
    assert half == pytest.approx(ALONE + ALL_SLOW / 2)


def test_accumulation_reduces_in_every_micro_batch_or_in_the_last():
    times, plain = compute(micro_batches=4), FORWARD + BACKWARD
    every = step_seconds("accumulation_sync", times, SLOW, PAIR, 25)
    assert every == pytest.approx(4 * (plain + ALL_SLOW) + UPDATE)
    last = step_seconds("accumulation_no_sync", times, SLOW, PAIR, 25)
    assert last == pytest.approx(4 * plain + ALL_SLOW + UPDATE)


def test_fsdp_gathers_ahead_and_scatters_behind():
    # Gathering a MiB takes 1/16 s between two devices, less than a layer: only the first gather of
    # each pass and the last scatter are waited for.
    seconds = ALONE + 2 * 0.0625 + 0.0625
    assert step_seconds("fsdp", compute(), FAST, PAIR) == pytest.approx(seconds)
    # gloo's reduce-scatter is an all-reduce: twice that.
    gloo = step_seconds("fsdp", compute(), FAST, PAIR, backend="gloo")
    assert gloo == pytest.approx(seconds + 0.0625)


def test_fsdp_that_keeps_its_layers_gathers_them_once():
    seconds = step_seconds("fsdp", compute(), FAST, PAIR, reshard=False)
    # Waited for: the first gather of forward, and the last scatter.
    assert seconds == pytest.approx(ALONE + 2 * 0.0625)
    slow = step_seconds("fsdp", compute(), link(8.0), PAIR, reshard=False)
    assert 2 * LAYERS * 4.0 < slow < step_seconds("fsdp", compute(), link(8.0), PAIR)


def test_fsdp_on_a_slow_link_is_as_long_as_its_messages():
    very_slow = link(8.0)
    # 4 MiB gathered twice and scattered once, half an all-reduce each; little is hidden.
    messages = 3 * LAYERS * 4.0
    seconds = step_seconds("fsdp", compute(), very_slow, PAIR)
    assert messages < seconds < messages + ALONE


def test_central_sends_everything_through_one_device():
    times = compute()
    link_of_two = SLOW
    logits = scatter_seconds(link_of_two, 2 * times.logits_bytes, 2)
    batch = scatter_seconds(link_of_two, 2 * times.batch_bytes, 2)
    model = broadcast_seconds(link_of_two, times.gradient_bytes, 2)
    seconds = step_seconds("central", times, link_of_two, 2)
    assert seconds == pytest.approx(ALONE + 2 * logits + batch + 2 * model)
    # Its first device has the logits of all others to take in, one after the other.
    more = step_seconds("central", times, link_of_two, 64) - ALONE
    assert more > 31 * (2 * logits + batch)


def test_central_with_a_local_loss_gathers_no_logits():
    logits = 2 * scatter_seconds(SLOW, 2 * compute().logits_bytes, 2)
    both = (step_seconds("central", compute(), SLOW, 2, local_loss=on) for on in (False, True))
    assert next(both) - next(both) == pytest.approx(logits)


def test_late_reductions_after_every_micro_batch_hide_nothing():
    times = compute(micro_batches=4)
    seconds = step_seconds("accumulation_sync", times, SLOW, PAIR, 1, overlap=False)
    assert seconds == pytest.approx(4 * (FORWARD + BACKWARD + ALL_SLOW) + UPDATE)


def test_times_that_were_not_measured_are_refused():
    missing = compute_times(status="unsupported", forward_seconds=None)
    with pytest.raises(ValueError, match="unsupported"):
        Compute.of(missing)
