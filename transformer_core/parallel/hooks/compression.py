"""The communication hooks of DistributedDataParallel, and their registry."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future

from schemas.config.parallel import AnyHook, CompressHook, EmulatedLinkHook, PowerSgdHook, RingHook
from transformer_core.parallel.communication.traffic import Traffic
from transformer_core.parallel.hooks.base_hook import Hook
from transformer_core.parallel.hooks.emulated_link import EmulatedLink
from transformer_core.parallel.hooks.power_sgd import PowerSgd
from transformer_core.parallel.hooks.ring_all_reduce import ring_all_reduce


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
