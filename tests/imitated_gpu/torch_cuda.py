"""torch.cuda for the imitated device. Work on it is synchronous, so streams and events are empty."""

import ctypes
import os
import time
from types import FunctionType, SimpleNamespace
from typing import Any

SEGMENT = 2**21
"""Bytes of the segments that the caching allocator would reserve."""


def load(torch_folder: str) -> ctypes.CDLL:
    """Loads the device into a process whose torch has not looked for devices yet."""
    for name in ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(f"{torch_folder}/lib/{name}", mode=ctypes.RTLD_GLOBAL)
    device = ctypes.CDLL(os.environ["IMITATED_GPU"])
    for name in ("gpu_allocated", "gpu_peak", "gpu_blocks"):
        getattr(device, name).restype = ctypes.c_int64
    for name in ("gpu_set_limit", "gpu_set_sync_mode"):
        getattr(device, name).argtypes = [ctypes.c_int64]
    device.gpu_set_limit(int(os.environ["IMITATED_GPU_BYTES"]))
    return device


class Stream:
    """A stream whose work is always done."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        import torch

        self.device, self.priority = torch.device("cuda", 0), priority
        self.device_index, self.device_type = 0, 1
        self.cuda_stream = self.stream_id = id(self)

    def wait_stream(self, other: "Stream") -> None: ...

    def wait_event(self, event: "Event") -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> "Stream":
        CURRENT.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        CURRENT.pop()


class Event:
    """The moment at which it was recorded."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self.timing, self.at = enable_timing, None

    def record(self, stream: Stream | None = None) -> None:
        self.at = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: "Event") -> float:
        if not (self.timing and end.timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'")
        if self.at is None or end.at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return 1e3 * (end.at - self.at)


class Within:
    """torch.cuda.stream, and torch.cuda.device."""

    def __init__(self, given: Any = None) -> None:
        self.stream = given if isinstance(given, Stream) else CURRENT[-1]

    def __enter__(self) -> None:
        CURRENT.append(self.stream)

    def __exit__(self, *_: object) -> None:
        CURRENT.pop()


class Graph:
    """torch.cuda.CUDAGraph."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA graphs are not imitated")


CURRENT: list[Stream] = []


def always(value: Any) -> FunctionType:
    """A new function, because torch._dynamo lists functions by identity."""
    return lambda *_, **__: value


def install(device: ctypes.CDLL) -> None:
    """Replaces the functions of torch that need a real device."""
    import torch
    import torch.distributed as dist
    from torch import _C, cuda

    CURRENT.append(Stream())
    default, total = CURRENT[0], int(os.environ["IMITATED_GPU_BYTES"])
    properties = SimpleNamespace(
        name="imitated GPU",
        uuid="00000000-0000-0000-0000-000000000000",
        total_memory=total,
        major=9,
        minor=0,
        multi_processor_count=132,
        L2_cache_size=50 * 2**20,
        warp_size=32,
    )

    def allocated(*_: Any) -> int:
        return device.gpu_allocated()

    def peak(*_: Any) -> int:
        return device.gpu_peak()

    def reserved(*_: Any) -> int:
        return -(-allocated() // SEGMENT) * SEGMENT

    def most_reserved(*_: Any) -> int:
        return -(-peak() // SEGMENT) * SEGMENT

    def statistics(*_: Any) -> dict[str, int]:
        kinds = {"allocated": (allocated, peak), "active": (allocated, peak)}
        kinds |= {"requested": (allocated, peak), "reserved": (reserved, most_reserved)}
        found = {"inactive_split_bytes.all.current": 0, "num_alloc_retries": 0, "num_ooms": 0}
        found |= {"allocation.all.current": device.gpu_blocks(), "segment.all.current": 1}
        for name, (current, most) in kinds.items():
            found[f"{name}_bytes.all.current"] = current()
            found[f"{name}_bytes.all.peak"] = most()
        return found

    of_memory: dict[str, Any] = {
        "memory_allocated": allocated,
        "max_memory_allocated": peak,
        "memory_reserved": reserved,
        "max_memory_reserved": most_reserved,
        "memory_stats": statistics,
        "mem_get_info": lambda *_: (total - allocated(), total),
        "reset_peak_memory_stats": lambda *_: device.gpu_reset_peak(),
        "empty_cache": always(None),
        "set_per_process_memory_fraction": lambda part, *_: device.gpu_set_limit(int(part * total)),
        "get_allocator_backend": always("native"),
        "memory_snapshot": always([]),
    }
    of_random: dict[str, Any] = {
        "manual_seed": lambda seed: torch.default_generator.manual_seed(seed),
        "manual_seed_all": lambda seed: torch.default_generator.manual_seed(seed),
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda state, device="cuda": torch.set_rng_state(state),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
    }
    runtime = SimpleNamespace(cudaProfilerStart=always(0), cudaProfilerStop=always(0))
    functions = of_memory | of_random
    functions |= {
        "is_available": always(True),
        "is_initialized": always(True),
        "is_bf16_supported": always(True),
        "is_current_stream_capturing": always(False),
        "_lazy_init": always(None),
        "init": always(None),
        "device_count": always(1),
        "current_device": always(0),
        "set_device": always(None),
        "synchronize": always(None),
        "get_device_name": always(properties.name),
        "get_device_properties": always(properties),
        "get_device_capability": always((9, 0)),
        "get_arch_list": always(["sm_90"]),
        "can_device_access_peer": always(False),
        "cudart": always(runtime),
        "current_stream": lambda device=None: CURRENT[-1],
        "default_stream": always(default),
        "set_stream": lambda stream: CURRENT.__setitem__(-1, stream),
        "_sleep": always(None),
    }
    for module, replaced in ((cuda, functions), (cuda.memory, of_memory), (cuda.random, of_random)):
        for name, function in replaced.items():
            setattr(module, name, function)
    cuda.Stream = cuda.streams.Stream = Stream
    cuda.Event = cuda.streams.Event = Event
    cuda.stream = cuda.StreamContext = cuda.device = cuda.device_of = Within
    cuda.CUDAGraph = cuda.graphs.CUDAGraph = Graph
    cuda.default_generators = (torch.default_generator,)
    cuda.memory._record_memory_history = always(None)
    cuda.memory._snapshot = always({"segments": [], "device_traces": [[]]})
    cuda.nvtx.range_push, cuda.nvtx.range_pop = always(None), always(None)
    cuda.nccl.version = always((2, 28, 3))
    torch.version.cuda = "13.0"
    torch.backends.cudnn.version = always(92000)
    torch.accelerator.synchronize = always(None)
    torch.accelerator.current_stream = lambda device=None: CURRENT[-1]
    torch.Tensor.record_stream = always(None)
    torch.Tensor.pin_memory = lambda tensor, device=None: tensor.clone()

    resize = torch.UntypedStorage.resize_

    def keep_on_gpu(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        """FSDP frees shards by this, but a torch without CUDA cannot resize a storage of it."""
        return storage if storage.device.type == "cuda" else resize(storage, size)

    torch.UntypedStorage.resize_ = keep_on_gpu

    sync_mode = [0]

    def set_sync_mode(mode: int) -> None:
        sync_mode[0] = mode
        device.gpu_set_sync_mode(mode)

    _C._cuda_hasPrimaryContext = always(True)
    _C._cuda_set_sync_debug_mode = set_sync_mode
    _C._cuda_get_sync_debug_mode = lambda: sync_mode[0]

    gloo, nccl = dist.distributed_c10d.init_process_group, []

    def init_process_group(backend: str | None = None, *words: Any, **options: Any) -> None:
        """Starts gloo under the name of NCCL."""
        if backend == "nccl":
            nccl.append(True)
            backend = "cpu:gloo,cuda:gloo"
            options.pop("device_id", None)
        gloo(backend, *words, **options)

    backend_of = dist.get_backend
    for module in (dist, dist.distributed_c10d):
        module.init_process_group = init_process_group
        module.get_backend = lambda group=None: "nccl" if nccl else backend_of(group)
        module.is_nccl_available = always(True)
