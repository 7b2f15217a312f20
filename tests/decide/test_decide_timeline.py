"""Step times of many devices, worked out by hand for easy numbers; those of the original study."""

import pytest
from projection_builders import BACKWARD, FORWARD, LAYERS, UPDATE, compute, compute_times

from schemas.config.parallel import LinkModel
from schemas.results import ReadyGradient
from transformer_core.decide.step_model import (
    MIB,
    REPORTED_SHARE,
    Bucket,
    Compute,
    buckets,
    parameters,
    step_seconds,
    worked_example,
)
from transformer_core.parallel.link_times import broadcast_seconds, scatter_seconds

ALONE = FORWARD + BACKWARD + UPDATE
WITHOUT_OVERLAP = {"bucket_mb": 1, "overlap": False}
PAIR = 2
"""Number of devices, each of which sends as many bytes as it all-reduces."""


def link(seconds_per_mib: float) -> LinkModel:
    """A link on which an all-reduce of 1 MiB between two devices takes this long."""
    return LinkModel(bandwidth=8 * MIB / seconds_per_mib)


FAST, SLOW = link(0.125), link(1.0)
LATE = LinkModel(bandwidth=FAST.bandwidth, latency=0.25)
ALL_SLOW = 1.0 * LAYERS
MICRO_BATCHES = {"accumulation_sync": 4, "accumulation_no_sync": 4}
ACCUMULATED = 4 * (FORWARD + BACKWARD) + UPDATE


def test_a_bucket_is_full_when_its_size_is_reached():
    gradients = compute().gradients
    assert buckets(gradients, 1) == [Bucket(MIB, seconds) for seconds in (0.5, 1, 1.5, 2)]
    assert buckets(gradients, 1.5) == [Bucket(2 * MIB, 1.0), Bucket(2 * MIB, 2.0)]
    assert buckets(gradients, 3) == [Bucket(3 * MIB, 1.5), Bucket(MIB, 2.0)]
    assert buckets(gradients, 25) == [Bucket(4 * MIB, 2.0)]


@pytest.mark.parametrize(
    "strategy",
    ["ddp", "ddp_no_overlap", "accumulation_sync", "accumulation_no_sync", "fsdp", "central"],
)
def test_a_single_device_sends_nothing(strategy):
    assert step_seconds(strategy, compute(), SLOW, 1) == ALONE


@pytest.mark.parametrize(
    ("strategy", "on", "options", "seconds"),
    [
        # A fast link leaves only the last bucket exposed.
        ("ddp", FAST, {"bucket_mb": 1}, ALONE + 0.125),
        # On a slow link the first is ready after half a second; then the link is never idle.
        ("ddp", SLOW, {"bucket_mb": 1}, FORWARD + 0.5 + ALL_SLOW + UPDATE),
        # One large bucket overlaps with nothing, and half its bytes take half the time.
        ("ddp", SLOW, {"bucket_mb": 25}, ALONE + ALL_SLOW),
        ("ddp", SLOW, {"bucket_mb": 25, "payload": 0.5}, ALONE + ALL_SLOW / 2),
        ("ddp_no_overlap", SLOW, {"bucket_mb": 25}, ALONE + ALL_SLOW),
        # Without overlap small buckets gain nothing.
        ("ddp_no_overlap", SLOW, {"bucket_mb": 1}, ALONE + ALL_SLOW),
        # A latency counts once for each of two messages of a ring of two; buckets queue.
        ("ddp", LATE, {"bucket_mb": 1}, FORWARD + 0.5 + 4 * (0.125 + 2 * 0.25) + UPDATE),
        # Gathering a MiB takes 1/16 s between two devices, less than a layer: only the first gather
        # of each pass and the last scatter are waited for.
        ("fsdp", FAST, {}, ALONE + 2 * 0.0625 + 0.0625),
        # gloo's reduce-scatter is an all-reduce: twice that.
        ("fsdp", FAST, {"backend": "gloo"}, ALONE + 2 * 0.0625 + 2 * 0.0625),
        # Without resharding, layers are gathered once.
        ("fsdp", FAST, {"reshard": False}, ALONE + 0.0625 + 0.0625),
        # Reductions in every micro-batch, or in the last; late ones hide nothing either.
        ("accumulation_sync", SLOW, {"bucket_mb": 25}, ACCUMULATED + 4 * ALL_SLOW),
        ("accumulation_no_sync", SLOW, {"bucket_mb": 25}, ACCUMULATED + ALL_SLOW),
        ("accumulation_sync", SLOW, WITHOUT_OVERLAP, ACCUMULATED + 4 * ALL_SLOW),
    ],
)
def test_a_step_of_two_devices(strategy, on, options, seconds):
    times = compute(MICRO_BATCHES.get(strategy, 1))
    assert step_seconds(strategy, times, on, PAIR, **options) == pytest.approx(seconds)


def test_fsdp_on_a_slow_link_takes_as_long_as_its_messages():
    very_slow = link(8.0)
    # 4 MiB gathered twice and scattered once, half an all-reduce each; little is hidden.
    messages = 3 * LAYERS * 4.0
    seconds = step_seconds("fsdp", compute(), very_slow, PAIR)
    assert messages < seconds < messages + ALONE
    once = step_seconds("fsdp", compute(), very_slow, PAIR, reshard=False)
    assert 2 * LAYERS * 4.0 < once < seconds


def test_fsdp_gathers_all_tensors_of_a_layer_at_once():
    whole = compute_times()
    halves = [
        ReadyGradient(bytes=MIB // 2, seconds=one.seconds - early, layer=one.layer)
        for one in whole.gradients
        for early in (0.25, 0.0)
    ]
    divided = Compute.of(whole.model_copy(update={"gradients": halves}))
    seconds = step_seconds("fsdp", compute(), LATE, PAIR)
    assert step_seconds("fsdp", divided, LATE, PAIR) == pytest.approx(seconds)


def test_fsdp_is_never_faster_than_a_single_device():
    """The last gradient may be ready long before backward ends."""
    whole = compute_times()
    early = [one.model_copy(update={"seconds": one.seconds / 2}) for one in whole.gradients]
    seconds = step_seconds(
        "fsdp", Compute.of(whole.model_copy(update={"gradients": early})), link(1e-7), PAIR
    )
    assert seconds == pytest.approx(ALONE, rel=1e-6)
    assert seconds > ALONE


def test_central_sends_everything_through_one_device():
    times = compute()
    logits = scatter_seconds(SLOW, 2 * times.logits_bytes, 2)
    batch = scatter_seconds(SLOW, 2 * times.batch_bytes, 2)
    model = broadcast_seconds(SLOW, times.gradient_bytes, 2)
    seconds = step_seconds("central", times, SLOW, 2)
    assert seconds == pytest.approx(ALONE + 2 * logits + batch + 2 * model)
    # Its first device receives the logits of all others, one after the other.
    more = step_seconds("central", times, SLOW, 64) - ALONE
    assert more > 31 * (2 * logits + batch)
    # With a local loss it gathers none.
    local = step_seconds("central", times, SLOW, 2, local_loss=True)
    assert seconds - local == pytest.approx(2 * logits)


def test_times_that_were_not_measured_are_refused():
    missing = compute_times(status="unsupported", forward_seconds=None)
    with pytest.raises(ValueError, match="unsupported"):
        Compute.of(missing)


def test_parameters_are_those_of_the_annotated_transformer():
    # 6 + 6 layers of width 512: 44.0 million in matrices of the layers, 3 tables of 30,000 x 512.
    assert parameters() == 44_040_192 + 3 * 30_000 * 512


def test_shares_span_the_range_of_the_unknowns():
    example = worked_example()
    assert len(example.cases) == 8
    sent = 2 * 3 / 4 * 4 * parameters()  # bytes that each of four GPUs sends
    for case in example.cases:
        assert case.all_reduce_seconds == pytest.approx(sent / case.link_bytes_per_second)
        both = case.all_reduce_seconds + case.compute_seconds
        assert case.share == pytest.approx(case.all_reduce_seconds / both)
    # A slow link, products near the peak and short sentences: most communication.
    most = max(example.cases, key=lambda case: case.share)
    assert (most.link_bytes_per_second, most.utilisation, most.tokens_per_pair) == (3e9, 0.6, 20)
    least = min(example.cases, key=lambda case: case.share)
    ends = (least.link_bytes_per_second, least.utilisation, least.tokens_per_pair)
    assert ends == (25e9, 0.2, 100)
    # One all-reduce does not explain the reported share: the report says so.
    assert most.share < REPORTED_SHARE
