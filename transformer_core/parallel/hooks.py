"""Communication hooks: how DistributedDataParallel reduces a bucket of gradients.

DDP calls a hook once for every bucket, on the thread of the backward pass, in the same order on all
ranks. The hook averages the bucket over ranks and returns a future of the result, while backward
continues. The hooks are a ring of point-to-point messages (Patarasuk and Yuan, JPDC 69, 2009), 16-bit
messages, PowerSGD (Vogels et al., NeurIPS 2019, arXiv 1905.13727), and an emulated slower link.
"""

import contextlib
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from schemas.config.parallel import (
    AnyHook,
    CompressHook,
    EmulatedLinkHook,
    LinkModel,
    PowerSgdHook,
    RingHook,
)
from transformer_core.parallel.link_times import all_reduce_seconds
from transformer_core.parallel.messages import Traffic


class Hook:
    """The backend's own all-reduce, counting its traffic; subclasses average differently."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic

    def register(self, module: DistributedDataParallel) -> None:
        def average(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
            return self.average(bucket)

        module.register_comm_hook(None, average)

    def payload(self, bucket: dist.GradBucket) -> int:
        """Number of bytes that the bucket takes on the wire."""
        return bucket.buffer().nbytes

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Returns a future of the bucket's buffer, averaged over ranks."""
        self.traffic.add_all_reduce(self.payload(bucket), dist.get_world_size())
        return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]

    def held_back(self) -> dict[Tensor, Tensor] | None:
        """See :meth:`transformer_core.parallel.strategy.Strategy.held_back`."""
        return None

    def memory(self, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
        """See :meth:`transformer_core.parallel.strategy.Strategy.memory`; the parameters
        have these ``names``."""
        return {}

    def remember(self, memory: Mapping[str, Tensor], names: Mapping[Tensor, str]) -> None:
        """Restores the state that :meth:`memory` returned."""

    def close(self) -> None:
        """Ends everything that the hook started."""


Count = Callable[[int, int], None]  # called with the bytes sent and received in each step


def ring_all_reduce(
    values: Tensor, group: dist.ProcessGroup, count: Count = lambda sent, received: None
) -> None:
    """Replaces ``values``, contiguous and of the same shape on all ranks, by their sum over ranks.

    We cut ``values`` into p chunks, one for each of the p ranks. In p - 1 steps of reduce-scatter
    every rank sends a chunk to its right neighbour and adds the one from its left, so that each rank
    ends up with one complete sum; in p - 1 steps of all-gather the sums go round. A rank sends and
    receives about 2 (p - 1) / p of the bytes, whatever the number of ranks. All ranks get the same
    bits, because only one rank computes each sum.
    """
    rank, world_size = group.rank(), group.size()
    chunks = values.view(-1).tensor_split(world_size)
    incoming = torch.empty_like(chunks[0])
    right, left = (dist.get_global_rank(group, (rank + offset) % world_size) for offset in (1, -1))
    for step in range(2 * (world_size - 1)):
        reducing = step < world_size - 1
        # The rank before the one with its number completes a chunk.
        outgoing = chunks[(rank - step) % world_size]
        target = chunks[(rank - step - 1) % world_size]
        received = incoming[: target.numel()] if reducing else target
        # With fewer values than ranks, some chunks are empty; both ends know and skip them.
        operations = []
        if outgoing.numel():
            operations.append(dist.P2POp(dist.isend, outgoing, right, group))
        if received.numel():
            operations.append(dist.P2POp(dist.irecv, received, left, group))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        if reducing:
            target += received
        count(outgoing.nbytes, received.nbytes)


_ERROR, _FACTOR, _STEPS = "error/", "factor/", "steps"


class PowerSgd(Hook):
    """torch's PowerSGD, which sends two thin factors in place of every gradient matrix.

    The error of a step is added to the next gradient (error feedback), and a step starts with the
    second factors of the one before. torch keeps both by bucket. But a resumed run has different
    buckets in its first step, so we keep them by parameter when buckets change. On a CPU, backward
    waits for every bucket.
    """

    def __init__(self, traffic: Traffic, spec: PowerSgdHook, reductions_per_step: int) -> None:
        super().__init__(traffic)
        self.state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=spec.rank,
            start_powerSGD_iter=spec.start_step * reductions_per_step,
            random_seed=0,  # of the first factors, which must be the same on all ranks
        )
        self.parameters: dict[int, list[Tensor]] = {}
        self.kept: dict[Tensor, tuple[Tensor | None, Tensor | None]] = {}
        """Flat error and second factor of parameters whose bucket has not been reduced since."""

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:
        plain = self.state.iter < self.state.start_powerSGD_iter
        before = self.state.total_numel_after_compression
        buffer = bucket.buffer()
        self._take_up(bucket.index(), bucket.parameters(), compresses=not plain)
        with _own_random_numbers(buffer.device):
            future = powerSGD_hook.powerSGD_hook(self.state, bucket)
        if buffer.device.type != "cuda":
            # Whichever gloo thread ends an all-reduce starts the second and third. Without waiting,
            # ranks might order them differently from the first all-reduce of the next bucket.
            future.wait()
        compressed = self.state.total_numel_after_compression - before
        payload = (buffer.numel() if plain else compressed) * buffer.element_size()
        # A compressed bucket takes three: tensors not worth compressing, and the two factors.
        self.traffic.add_all_reduce(payload, dist.get_world_size(), calls=1 if plain else 3)
        return future

    @torch.no_grad()
    def held_back(self) -> dict[Tensor, Tensor]:
        found: dict[Tensor, Tensor] = {}
        for index, parameters in sorted(self.parameters.items()):
            errors = self.state.error_dict.get(index)
            if errors is not None:
                mean = errors.clone()
                dist.all_reduce(mean)
                mean.div_(dist.get_world_size())
                found |= {p: part.view_as(p) for p, part in _parts(mean, parameters)}
        return found

    def memory(self, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
        memory = {_STEPS: torch.tensor(self.state.iter)}
        for parameter, (error, factor) in (self.kept | self._apart()).items():
            for prefix, flat in ((_ERROR, error), (_FACTOR, factor)):
                if flat is not None:
                    memory[f"{prefix}{names[parameter]}"] = flat.clone()
        return memory

    def remember(self, memory: Mapping[str, Tensor], names: Mapping[Tensor, str]) -> None:
        if _STEPS not in memory:
            return
        self.state.iter = int(memory[_STEPS])
        self._forget()
        self.kept = {}
        for parameter, name in names.items():
            found = (memory.get(f"{prefix}{name}") for prefix in (_ERROR, _FACTOR))
            error, factor = (flat if flat is None else flat.to(parameter.device) for flat in found)
            self.kept[parameter] = error, factor

    def _take_up(self, index: int, parameters: list[Tensor], compresses: bool) -> None:
        """Moves what we kept of these parameters to where torch looks for the bucket ``index``."""
        if index in self.parameters and (
            len(self.parameters[index]) != len(parameters)
            or any(map(operator.is_not, self.parameters[index], parameters))
        ):
            self.kept |= self._apart()
            self._forget()
        self.parameters[index] = parameters
        state = self.state
        if not compresses or index in state.q_memory_dict:
            return
        pieces = {p: self.kept.pop(p) for p in parameters if p in self.kept}
        errors = [pieces[p][0] for p in parameters if p in pieces]
        known = [error for error in errors if error is not None]
        if len(known) == len(parameters):
            state.error_dict[index] = torch.cat(known)
        compressed = self._compressed(parameters)
        factors = [pieces[p][1] for p, _, _ in compressed if p in pieces]
        found = [factor for factor in factors if factor is not None]
        if found and len(found) == len(compressed):
            state.q_memory_dict[index] = torch.cat(found)
            # torch writes it before reading it, so only its size matters.
            size = sum(rows for _, rows, _ in compressed)
            state.p_memory_dict[index] = found[0].new_empty(size)

    def _apart(self) -> dict[Tensor, tuple[Tensor | None, Tensor | None]]:
        """Error and second factor of every parameter in the current buckets."""
        found: dict[Tensor, tuple[Tensor | None, Tensor | None]] = {}
        for index, parameters in self.parameters.items():
            errors, factors = (
                memory.get(index) for memory in (self.state.error_dict, self.state.q_memory_dict)
            )
            if factors is None:
                continue
            compressed = self._compressed(parameters)
            sizes = [columns for _, _, columns in compressed]
            own = dict(zip((p for p, _, _ in compressed), factors.split(sizes), strict=True))
            error = {} if errors is None else dict(_parts(errors, parameters))
            found |= {p: (error.get(p), own.get(p)) for p in parameters}
        return found

    def _forget(self) -> None:
        state = self.state
        for memory in (self.parameters, state.error_dict, state.p_memory_dict, state.q_memory_dict):
            memory.clear()

    def _compressed(self, parameters: Sequence[Tensor]) -> list[tuple[Tensor, int, int]]:
        """The compressed matrices of a bucket with the sizes of their first and second factors, in
        torch's order of the factors: by shape."""
        by_shape: dict[tuple[int, int], list[tuple[Tensor, int, int]]] = {}
        for parameter in parameters:
            n = parameter.shape[0]
            m = parameter.numel() // n
            rank = min(n, m, self.state.matrix_approximation_rank)
            if powerSGD_hook._should_compress(n, m, rank, self.state.min_compression_rate)[0]:
                by_shape.setdefault((n, m), []).append((parameter, n * rank, m * rank))
        return [one for group in by_shape.values() for one in group]


def _own_random_numbers(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Preserves the random state of a GPU. torch draws the first factors on the CPU, from the same
    seed on all ranks, but also sets this seed on every GPU: all replicas would then drop the same
    activations."""
    return torch.random.fork_rng([device], enabled=device.type == "cuda")


def _parts(flat: Tensor, parameters: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Pairs each parameter with its part of ``flat``."""
    sizes = [parameter.numel() for parameter in parameters]
    return list(zip(parameters, flat.split(sizes), strict=True))


class EmulatedLink(Hook):
    """Emulates a slower link by delaying the results of another hook, ``inner``.

    The modelled link takes the buckets one by one: it starts one when all ranks have filled it and
    the one before is done, and takes as long as ``model`` says for ``devices`` devices. Backward
    continues meanwhile, as with a real link. An all-reduce of one number tells when all ranks have
    filled the bucket; without it, an early rank would not wait for the others.

    On a CPU a thread sleeps until the delivery. On CUDA a kernel spins before the result on a
    separate stream, which delays the device's work but not the host.

    A rate limit is a token bucket: after a rest of ``burst_seconds`` or more, it passes at once an
    amount that normally takes that long (Tanenbaum and Wetherall, Computer Networks, 5th ed.,
    section 5.4.2). On CUDA the host does not know how long the link rested, so there are no bursts.
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
            # On CUDA the stream waits, and these two calls return at once.
            everybody.wait()
            torch.cuda._sleep(int(seconds * self.cycles_per_second))
            held.set_result(result.wait())
        return held

    def _hold(
        self, everybody: dist.Work, result: Future[Tensor], held: Future[Tensor], seconds: float
    ) -> None:
        """Completes ``held`` with ``result`` once the link would have delivered it."""
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


def _cycles_per_second(device: torch.device) -> float:
    """Measures the cycles per second of the spinning kernel on a busy CUDA device.

    An idle device may run at different clocks, so matrix products run at the same time, from before
    the spinning until after it.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.device(device):
        beside = torch.cuda.Stream(device)
        factor = torch.randn(_LOAD_SIZE, _LOAD_SIZE, device=device)
        with torch.cuda.stream(beside):
            for _ in range(_LOAD_PRODUCTS):
                torch.mm(factor, factor)
        torch.cuda._sleep(_CYCLES)  # loads the kernel and gives the clocks time to rise
        start.record()
        torch.cuda._sleep(_CYCLES)
        end.record()
        end.synchronize()
        beside.synchronize()
    return _CYCLES / start.elapsed_time(end) * 1000


_CYCLES = 50_000_000
_LOAD_SIZE, _LOAD_PRODUCTS = 4096, 100
"""Width and number of the concurrent matrix products: 14 TFLOP, which take longer than the spinning
on all but the fastest devices, but do not delay a start noticeably."""


class Ring(Hook):
    """:func:`ring_all_reduce` while backward continues.

    Each step waits for the one before. On a CPU one thread does the waiting, so the rings of several
    buckets run one by one, in the order in which DDP calls the hook on all ranks. Messages of
    different buckets therefore cannot be confused, and a separate process group keeps them apart from
    all other messages. On CUDA the hook enqueues the steps on a separate stream, where they wait for
    one another.
    """

    def __init__(self, traffic: Traffic, device: torch.device, timeout: timedelta) -> None:
        super().__init__(traffic)
        self.group: dist.ProcessGroup = dist.new_group(timeout=timeout)
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
            # Divide first, as DDP does, so that a sum cannot overflow if the mean would not.
            buffer.div_(self.group.size())
            ring_all_reduce(buffer, self.group, partial(self.traffic.add, "ring_step"))
        except Exception as error:
            future.set_exception(error)  # type: ignore[arg-type]  # a mistake in torch's stubs
        else:
            future.set_result(buffer)

    def close(self) -> None:
        self.thread.shutdown()


class Compressed(Hook):
    """The backend's all-reduce of gradients rounded to a 16-bit format."""

    def __init__(self, traffic: Traffic, dtype: str) -> None:
        super().__init__(traffic)
        # DDP rejects torch's bfloat16 hook by name unless the backend is NCCL, but gloo supports it.
        fp16, bf16 = default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook
        self.hook: Any = fp16 if dtype == "fp16" else bf16

    def payload(self, bucket: dist.GradBucket) -> int:
        return 2 * bucket.buffer().numel()

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:
        self.traffic.add_all_reduce(self.payload(bucket), dist.get_world_size())
        return self.hook(None, bucket)


def build_hook(
    spec: AnyHook,
    traffic: Traffic,
    device: torch.device,
    reductions_per_step: int,
    timeout: timedelta,
) -> Hook:
    """Builds the hook of ``spec``, whose own messages may take ``timeout``; every rank must call
    this."""
    match spec:
        case RingHook():
            return Ring(traffic, device, timeout)
        case CompressHook():
            return Compressed(traffic, spec.dtype)
        case PowerSgdHook():
            return PowerSgd(traffic, spec, reductions_per_step)
        case EmulatedLinkHook():
            return EmulatedLink(Hook(traffic), spec, spec.devices, device)
