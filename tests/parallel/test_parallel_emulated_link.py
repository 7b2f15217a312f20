"""How long messages take over a link by its model; and the emulated link, which returns no bucket
earlier than a real link would and never blocks backward."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from schemas.config.parallel import LinkModel
from tests.distributed import run_ranks
from transformer_core.parallel import hooks
from transformer_core.parallel.hooks import EmulatedLink, Hook
from transformer_core.parallel.link_times import (
    all_reduce_seconds,
    burst_bytes,
    burst_seconds,
    gather_seconds,
)
from transformer_core.parallel.messages import Traffic

BYTES = 4096
SECONDS = 0.1
LINK = LinkModel(bandwidth=8 * BYTES / SECONDS)
"""A bucket takes SECONDS between two devices: each sends all its bytes."""
BURST = 0.8 * SECONDS
CPU = torch.device("cpu")


@dataclass
class Bucket:
    """The part of DDP's bucket that a hook uses."""

    values: torch.Tensor

    def buffer(self) -> torch.Tensor:
        return self.values


@dataclass
class Seen:
    """When a rank began and its buckets were done, by the host's clock, and their values."""

    began: float
    done: list[float]
    results: list[float]


def two_buckets(device: str = "cpu") -> Seen:
    """Average two buckets, one right after the other. The second rank begins only when the first
    has called the hook for both, so a hook that waited for other ranks would never return."""
    place = torch.device(device, dist.get_rank() if device == "cuda" else None)
    link = EmulatedLink(Hook(Traffic()), LINK, None, place)
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["called"])
    began = time.monotonic()
    values = [torch.full((BYTES // 4,), float(dist.get_rank() + n), device=place) for n in range(2)]
    futures = [link.average(Bucket(bucket)) for bucket in values]
    store.set("called", "")
    done, results = [], []
    for future in futures:
        results.append(float(future.wait()[0]))
        done.append(time.monotonic())
    link.close()
    return Seen(began, done, results)


def after_a_rest() -> tuple[list[float], list[float]]:
    """Seconds that two buckets take after a rest, three times, and the link's own delays."""
    link = EmulatedLink(Hook(Traffic()), LINK, None, CPU, BURST)
    took: list[float] = []
    held: list[float] = []

    def sleep(seconds: float) -> None:
        held.append(seconds)
        time.sleep(seconds)

    with patch.object(hooks, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep)):
        for _ in range(3):
            time.sleep(BURST)
            dist.barrier()
            began = time.monotonic()
            buckets = [Bucket(torch.zeros(BYTES // 4)) for _ in range(2)]
            for future in [link.average(bucket) for bucket in buckets]:
                future.wait()
            took.append(time.monotonic() - began)
        link.close()
    return took, held


def imagined(devices: int) -> float:
    """Seconds that a bucket takes on a link modelled for ``devices`` devices."""
    link = EmulatedLink(Hook(Traffic()), LINK, devices, CPU)
    dist.barrier()
    began = time.monotonic()
    link.average(Bucket(torch.zeros(BYTES // 4))).wait()
    link.close()
    return time.monotonic() - began


class Broken(Hook):
    def average(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_exception(ValueError("torn cable"))
        return future


def failing() -> str:
    """The error that a rank sees if the real collective fails."""
    link = EmulatedLink(Broken(Traffic()), LINK, None, CPU)
    try:
        link.average(Bucket(torch.zeros(4))).wait()
    except Exception as error:
        return str(error)
    finally:
        link.close()
    return "no error"


def work_of_a_rank() -> tuple[Seen, tuple[list[float], list[float]], float, str]:
    return two_buckets(), after_a_rest(), imagined(8), failing()


@pytest.fixture(scope="module")
def found():
    """The results of both ranks, for each function of :func:`work_of_a_rank`."""
    return [*zip(*run_ranks(work_of_a_rank, 2), strict=True)]


def check(ranks: Sequence[Seen]) -> None:
    _, late = ranks
    for seen in ranks:
        assert seen.results == [0.5, 1.5]
        # Buckets take their time in turn, counted from the arrival of the last rank.
        assert seen.done[0] >= late.began + SECONDS
        assert seen.done[1] >= late.began + 2 * SECONDS


@pytest.mark.slow
def test_buckets_wait_for_the_link_and_the_last_rank(found):
    check(found[0])


@pytest.mark.gpu(2)
def test_the_stream_is_held_on_cuda():
    check(run_ranks(two_buckets, 2, "cuda", backend="nccl"))


@pytest.mark.slow
def test_an_idle_link_lets_a_burst_through_at_once(found):
    for took, held in found[1]:
        assert min(took) >= 2 * SECONDS - BURST, "one burst, and not two"
        assert max(held[::2]) <= SECONDS - BURST + 1e-6


@pytest.mark.slow
def test_a_link_can_be_modelled_for_more_devices(found):
    seconds = all_reduce_seconds(LINK, BYTES, 8)
    assert seconds > 1.5 * SECONDS
    assert min(found[2]) >= seconds


@pytest.mark.slow
def test_an_error_of_the_real_collective_is_passed_on(found):
    assert all("torn cable" in said for said in found[3])


def held_alone() -> bool:
    """Whether the link still holds a bucket when later work of the device is done."""
    place = torch.device("cuda", 0)
    link = EmulatedLink(Hook(Traffic()), LINK, 2, place)
    bucket = Bucket(torch.ones(BYTES // 4, device=place))
    for _ in range(2):  # the first call loads kernels
        future = link.average(bucket)
        bucket.values.new_ones(4).sum().item()
        held = not link.stream.query()
        future.wait()
        torch.cuda.synchronize()
    link.close()
    return held


@pytest.mark.gpu
def test_on_cuda_neither_the_host_nor_the_computing_stream_waits():
    assert run_ranks(held_alone, 1, backend="nccl") == [True]


def test_a_ring_costs_each_device_the_same_however_many_there_are():
    """2 (p - 1) / p of the bytes, and 2 (p - 1) latencies (Patarasuk and Yuan, 2009)."""
    link = LinkModel(bandwidth=8e6)
    assert all_reduce_seconds(link, 1e6, 1) == 0
    assert all_reduce_seconds(link, 1e6, 2) == pytest.approx(1.0)
    assert all_reduce_seconds(link, 1e6, 4) == pytest.approx(1.5)
    assert all_reduce_seconds(link, 1e6, 1024) == pytest.approx(2 * 1023 / 1024)
    slow = LinkModel(bandwidth=8e6, latency=0.01)
    assert all_reduce_seconds(slow, 0, 4) == pytest.approx(2 * 3 * 0.01)


def test_a_tree_takes_few_steps_with_all_bytes():
    tree = LinkModel(bandwidth=8e6, latency=0.01, algorithm="tree")
    for devices, levels in [(2, 1), (3, 2), (4, 2), (5, 3), (1024, 10)]:
        assert all_reduce_seconds(tree, 1e6, devices) == pytest.approx(2 * levels * 1.01)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    link = LinkModel(bandwidth=1e9, latency=1e-4)
    for devices in (2, 3, 8):
        assert all_reduce_seconds(link, 1e6, devices) == pytest.approx(
            2 * gather_seconds(link, 1e6, devices)
        )


def test_a_burst_is_a_millisecond_of_a_fast_link_and_a_few_packets_of_a_slow_one():
    assert burst_bytes(1e9) == 125_000
    assert burst_seconds(1e9) == pytest.approx(0.001)
    assert burst_bytes(1e6) == 16 * 1024
    assert burst_seconds(1e6) == pytest.approx(0.131, abs=0.001)
