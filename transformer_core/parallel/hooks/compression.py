"""The communication hooks of DistributedDataParallel, and their registry."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future

from schemas.parallel import AnyHook, CompressHook, EmulatedLinkHook, PowerSgdHook, RingHook
from transformer_core.parallel.emulated_link import EmulatedLink
from transformer_core.parallel.hook import Hook
from transformer_core.parallel.ring import ring_all_reduce
from transformer_core.parallel.traffic import Traffic


class Ring(Hook):
    """:func:`ring_all_reduce` while backward goes on.

    Its steps depend on one another, so somebody must wait between them. On a CPU that is a thread
    of its own: one thread, so the rings of several buckets run one after the other, in the order in
    which backward calls the hook, which DDP keeps the same on all ranks. Messages of two buckets
    can therefore not be taken for one another, and a process group of the ring's own keeps them
    apart from all other messages. On CUDA it is a stream of its own: the steps are enqueued in the
    hook, and wait for one another on the device.
    """

    def __init__(self, traffic: Traffic, device: torch.device) -> None:
        super().__init__(traffic)
        self.group: dist.ProcessGroup = dist.new_group()
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.thread = ThreadPoolExecutor(1, "ring")

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:
        buffer = bucket.buffer()
        if self.stream is None:
            future: Future[Tensor] = Future()
            self.thread.submit(self._fulfil, future, buffer)
            return future
        future = Future(devices=[self.device])
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            self._fulfil(future, buffer)
        return future

    def _fulfil(self, future: Future[Tensor], buffer: Tensor) -> None:
        try:
            # Divided first, as DDP does, so that a sum cannot overflow where the mean would not.
            buffer.div_(self.group.size())
            ring_all_reduce(buffer, self.group, self._count)
        except Exception as error:
            future.set_exception(error)  # type: ignore[arg-type]  # a mistake in torch's stubs
        else:
            future.set_result(buffer)

    def _count(self, sent: int, received: int) -> None:
        self.traffic.add("ring_step", sent, received)

    def close(self) -> None:
        self.thread.shutdown()


class Compressed(Hook):
    """The backend's all-reduce on gradients rounded to a 16-bit format."""

    def __init__(self, traffic: Traffic, dtype: torch.dtype) -> None:
        super().__init__(traffic)
        # DDP refuses torch's bfloat16 hook by its name where the backend is not NCCL; gloo can.
        self.hook: Callable[[Any, dist.GradBucket], Future[Tensor]] = {
            torch.float16: default_hooks.fp16_compress_hook,
            torch.bfloat16: default_hooks.bf16_compress_hook,
        }[dtype]
        self.itemsize = dtype.itemsize

    def payload(self, bucket: dist.GradBucket) -> int:
        return bucket.buffer().numel() * self.itemsize

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:
        self.traffic.add_all_reduce(self.payload(bucket), dist.get_world_size())
        return self.hook(None, bucket)


class PowerSgd(Hook):
    """torch's PowerSGD: two thin factors of every gradient matrix in its place.

    What a step leaves out is added to the next one (error feedback). That memory starts anew when
    a run is resumed, and with it the first steps of plain all-reduce. On a CPU, backward waits for
    every bucket.
    """

    def __init__(self, traffic: Traffic, spec: PowerSgdHook, reductions_per_step: int) -> None:
        super().__init__(traffic)
        self.state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=spec.rank,
            start_powerSGD_iter=spec.start_step * reductions_per_step,
            random_seed=0,  # of the first factors, which must be the same on all ranks
        )

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:
        plain = self.state.iter < self.state.start_powerSGD_iter
        before = self.state.total_numel_after_compression
        future = powerSGD_hook.powerSGD_hook(self.state, bucket)
        buffer = bucket.buffer()
        if buffer.device.type != "cuda":
            # The second and third all-reduce are started by whatever thread of gloo ends the one
            # before. Ranks would not agree on their order with the first of the next bucket.
            future.wait()
        compressed = self.state.total_numel_after_compression - before
        payload = (buffer.numel() if plain else compressed) * buffer.element_size()
        # Compressed, a bucket takes three: what does not pay to compress, and the two factors.
        self.traffic.add_all_reduce(payload, dist.get_world_size(), calls=1 if plain else 3)
        return future


def build_hook(
    spec: AnyHook, traffic: Traffic, device: torch.device, reductions_per_step: int
) -> Hook:
    """The hook that ``spec`` names; every rank must call this."""
    match spec:
        case RingHook():
            return Ring(traffic, device)
        case CompressHook():
            dtype = torch.float16 if spec.dtype == "fp16" else torch.bfloat16
            return Compressed(traffic, dtype)
        case PowerSgdHook():
            return PowerSgd(traffic, spec, reductions_per_step)
        case EmulatedLinkHook():
            return EmulatedLink(Hook(traffic), spec, spec.devices, device)
