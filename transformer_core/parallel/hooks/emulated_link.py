"""A slower link than there is: buckets come back no earlier than it would bring them."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from schemas.config.link import LinkModel
from transformer_core.parallel.communication.link_times import all_reduce_seconds
from transformer_core.parallel.hooks.base_hook import Hook


class EmulatedLink(Hook):
    """A hook around another one, ``inner``, that lets it work and holds its result back.

    The modelled link takes the buckets one after the other: one begins when all ranks have filled
    it and the link is done with the one before, and takes as long as ``model`` says for ``devices``
    devices. Backward goes on meanwhile, as with the real thing. That all ranks have filled it, an
    all-reduce of one number tells: without it a rank that is early would not wait for the others.

    On a CPU a thread waits for the moment. On CUDA a kernel that does nothing but spin comes before
    the result on a stream of its own: the device's stream is held, the host is not.

    A rate limit is a bucket of tokens: after a rest of ``burst_seconds`` or more, it lets through
    at once what takes it so long otherwise (Tanenbaum and Wetherall, Computer Networks, 5th ed.,
    section 5.4.2). On CUDA the host does not know how long the link rested, and there is none.
    """

    def __init__(
        self,
        inner: Hook,
        model: LinkModel,
        devices: int | None,
        device: torch.device,
        burst_seconds: float = 0.0,
    ) -> None:
        super().__init__(inner.traffic)
        self.inner = inner
        self.model = model
        self.devices = devices or dist.get_world_size()
        self.device = device
        self.burst_seconds = burst_seconds
        self.free_at = 0.0
        self.thread = ThreadPoolExecutor(1, "link")
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.cycles_per_second = _cycles_per_second(device) if self.stream else 0.0

    def payload(self, bucket: dist.GradBucket) -> int:
        return self.inner.payload(bucket)

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:
        seconds = all_reduce_seconds(self.model, self.payload(bucket), self.devices)
        everybody = dist.all_reduce(torch.zeros(1, device=self.device), async_op=True)
        assert everybody is not None, "it is asynchronous, and of the whole group"
        result = self.inner.average(bucket)
        held: Future[Tensor]
        if self.stream is None:
            held = Future()
            self.thread.submit(self._hold, everybody, result, held, seconds)
            return held
        held = Future(devices=[self.device])
        with torch.cuda.stream(self.stream):
            # On CUDA these two waits are the stream's, and return at once.
            everybody.wait()
            torch.cuda._sleep(int(seconds * self.cycles_per_second))
            held.set_result(result.wait())
        return held

    def _hold(
        self, everybody: dist.Work, result: Future[Tensor], held: Future[Tensor], seconds: float
    ) -> None:
        """Fulfil ``held`` with ``result`` once the link would be done with it."""
        try:
            everybody.wait()
            began = max(self.free_at, time.monotonic() - self.burst_seconds)
            self.free_at = began + seconds
            averaged = result.wait()
            time.sleep(max(0.0, self.free_at - time.monotonic()))
        except Exception as error:
            held.set_exception(error)  # type: ignore[arg-type]  # a mistake in torch's stubs
        else:
            held.set_result(averaged)

    def held_back(self) -> dict[Tensor, Tensor] | None:
        return self.inner.held_back()

    def memory(self, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
        return self.inner.memory(names)

    def remember(self, memory: Mapping[str, Tensor], names: Mapping[Tensor, str]) -> None:
        self.inner.remember(memory, names)

    def close(self) -> None:
        self.thread.shutdown()
        self.inner.close()


def _cycles_per_second(device: torch.device, cycles: int = 50_000_000) -> float:
    """How many cycles of the spinning kernel are a second on a CUDA device at work.

    An idle device may have other clocks than one that trains: so matrix products run beside, from
    before the spinning until after it.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.device(device):
        beside = torch.cuda.Stream(device)
        factor = torch.randn(_LOAD_SIZE, _LOAD_SIZE, device=device)
        with torch.cuda.stream(beside):
            for _ in range(_LOAD_PRODUCTS):
                torch.mm(factor, factor)
        torch.cuda._sleep(cycles)  # the first one loads the kernel and waits for the clocks
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        beside.synchronize()
    return cycles / start.elapsed_time(end) * 1000


_LOAD_SIZE, _LOAD_PRODUCTS = 4096, 100
"""Width and number of the matrix products beside: 14 TFLOP, longer than the spinning on all but
the fastest devices, and not so long that a start takes notice."""
