"""The emulated link: no bucket comes back before a real one would bring it, nor blocks backward."""

import time
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from schemas.config.parallel import LinkModel
from tests.distributed import run_ranks
from transformer_core.parallel import hooks
from transformer_core.parallel.hooks import EmulatedLink, Hook
from transformer_core.parallel.link_times import all_reduce_seconds
from transformer_core.parallel.messages import Traffic

BYTES = 4096
SECONDS = 0.25
LINK = LinkModel(bandwidth=8 * BYTES / SECONDS)
"""A bucket of two devices takes SECONDS: each sends its whole length."""


@dataclass
class Bucket:
    """What a hook sees of DDP's bucket."""

    values: torch.Tensor

    def buffer(self) -> torch.Tensor:
        return self.values


@dataclass
class Seen:
    """When a rank began, when its buckets were done (on the clock of the host), and their values."""

    began: float
    done: list[float]
    results: list[float]


def two_buckets(device: str = "cpu") -> Seen:
    """Two buckets, one right after the other. The second rank begins when the first has called the
    hook for both: a hook that waited for it would never return."""
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


def check(ranks: list[Seen]) -> None:
    _, late = ranks
    for seen in ranks:
        assert seen.results == [0.5, 1.5]
        # From when the last rank is there, and one after the other: never earlier.
        assert seen.done[0] >= late.began + SECONDS
        assert seen.done[1] >= late.began + 2 * SECONDS


def test_buckets_wait_for_the_link_and_for_the_last_rank():
    check(run_ranks(two_buckets, 2))


@pytest.mark.gpu(2)
def test_the_stream_is_held_on_cuda():
    check(run_ranks(two_buckets, 2, "cuda", backend="nccl"))


def after_a_rest(burst_seconds: float) -> tuple[list[float], list[float]]:
    """Seconds that two buckets take together after a rest, a few times, and for how long the link
    held each of them back."""
    link = EmulatedLink(Hook(Traffic()), LINK, None, torch.device("cpu"), burst_seconds)
    took: list[float] = []
    held: list[float] = []

    def sleep(seconds: float) -> None:
        held.append(seconds)
        time.sleep(seconds)

    hooks.time = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    for _ in range(3):
        time.sleep(burst_seconds)
        dist.barrier()
        began = time.monotonic()
        buckets = [Bucket(torch.zeros(BYTES // 4)) for _ in range(2)]
        for future in [link.average(bucket) for bucket in buckets]:
            future.wait()
        took.append(time.monotonic() - began)
    link.close()
    return took, held


def test_an_idle_link_lets_a_burst_through_at_once():
    burst = 0.8 * SECONDS
    for took, held in run_ranks(after_a_rest, 2, burst):
        assert min(took) >= 2 * SECONDS - burst, "one burst, and not two"
        assert max(held[::2]) <= SECONDS - burst + 1e-6


def held_alone() -> tuple[float, float, float]:
    """Seconds until the hook, other work of the device and the bucket were done."""
    place = torch.device("cuda", 0)
    link = EmulatedLink(Hook(Traffic()), LINK, 2, place)
    bucket = Bucket(torch.ones(BYTES // 4, device=place))
    link.average(bucket).wait()
    torch.cuda.synchronize()
    began = time.monotonic()
    future = link.average(bucket)
    called = time.monotonic() - began
    bucket.values.new_ones(4).sum().item()
    computed = time.monotonic() - began
    future.wait()
    torch.cuda.synchronize()
    link.close()
    return called, computed, time.monotonic() - began


@pytest.mark.gpu
def test_on_cuda_neither_the_host_nor_the_computing_stream_is_held():
    ((called, computed, done),) = run_ranks(held_alone, 1, backend="nccl")
    assert called < computed < SECONDS
    # A clock that is faster than while it was measured makes it a little shorter.
    assert done > 0.8 * SECONDS


def imagined(devices: int | None) -> float:
    link = EmulatedLink(Hook(Traffic()), LINK, devices, torch.device("cpu"))
    dist.barrier()
    began = time.monotonic()
    link.average(Bucket(torch.zeros(BYTES // 4))).wait()
    link.close()
    return time.monotonic() - began


def test_more_devices_can_be_imagined_than_there_are():
    seconds = all_reduce_seconds(LINK, BYTES, 8)
    assert seconds > 1.5 * SECONDS
    assert all(took >= seconds for took in run_ranks(imagined, 2, 8))


def failing() -> str:
    class Broken(Hook):
        def average(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            future.set_exception(ValueError("torn cable"))
            return future

    link = EmulatedLink(Broken(Traffic()), LINK, None, torch.device("cpu"))
    try:
        link.average(Bucket(torch.zeros(4))).wait()
    except Exception as error:
        return str(error)
    finally:
        link.close()
    return "no error"


def test_an_error_of_the_real_collective_is_handed_on():
    assert all("torn cable" in said for said in run_ranks(failing, 2))
