"""Parallel strategies, their hooks, and the links between hosts."""

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import Unit
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from schemas.base import MOST_SECONDS, MOST_STEPS, Count, Schema, Seconds, refusal
from schemas.config.facts import HookFacts, NumberFormat, StrategyFacts

_UNITS = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
_PATTERN = re.compile(r"\s*(\d{1,18}(?:\.\d{0,18})?)\s*([kMG]?bit/s)\s*")


def bits_per_second(value: Any) -> Any:
    """A bandwidth such as ``100Mbit/s`` as a number; values other than text are returned
    unchanged."""
    if not isinstance(value, str):
        return value
    found = _PATTERN.fullmatch(value)
    if found is None:
        remedy = "write a number and a unit: kbit/s, Mbit/s or Gbit/s, such as 100Mbit/s"
        raise refusal("is not a bandwidth", remedy)
    return float(found[1]) * _UNITS[found[2]]


_BitsPerSecond = Annotated[float, Field(gt=0, le=1e15)]
Bandwidth = Annotated[
    _BitsPerSecond,
    BeforeValidator(bits_per_second, json_schema_input_type=_BitsPerSecond | str),
    Unit("bits per second"),
]
"""Bits per second; files may also give text with a unit, such as 1Gbit/s."""


def show_bandwidth(bits: float) -> str:
    """A bandwidth in a suitable unit, such as 100 Mbit/s."""
    unit = max(
        (u for u in _UNITS.items() if bits >= u[1]), key=lambda u: u[1], default=("bit/s", 1)
    )
    return f"{bits / unit[1]:g} {unit[0]}"


class Link(Schema):
    """A rate-limited connection between two hosts simulated on this machine.

    Each host is a network namespace, and a pair of virtual network devices joins them. Where that
    is not permitted, the link is emulated (parallel.hook of kind emulated_link), and the results
    say so.
    """

    bandwidth: Bandwidth = Field(examples=["100Mbit/s"])
    """Bits per second in each direction, including headers: a number, or text such as 100Mbit/s."""
    emulate: bool = False  # emulate the link even if it could be created


LinkKind = Literal["namespaces", "emulated"]  # how a run's link was created
Algorithm = Literal["ring", "tree"]  # how an all-reduce uses a link


class LinkModel(Schema):
    """A link in the alpha-beta model: every message costs a latency plus time for its bytes."""

    bandwidth: Bandwidth = Field(examples=["100Mbit/s"])
    """Bits per second that a device can send, and can receive at the same time."""
    latency: Seconds = 0.0  # seconds that any message takes, however short
    algorithm: Algorithm = "ring"
    """ring: 2(p - 1) steps, each with 1/p of the bytes; tree: a reduction up a binomial tree and
    a broadcast back down, 2 log2(p) steps with all bytes."""


LINK_VARIABLE = "RUN_LINK"
"""Environment variable of a worker: the :data:`LinkKind` of its link."""

HOST_VARIABLE = "RUN_HOST"
"""Environment variable of a worker: the name of its host, if it differs from the real one."""


class Single(StrategyFacts, Schema):
    """One process, one device."""

    kind: Literal["single"] = "single"

    one_process: ClassVar = True


class DataParallel(StrategyFacts, Schema):
    """torch.nn.DataParallel: one process drives all GPUs, the first one gathers and updates."""

    kind: Literal["data_parallel"]
    local_loss: bool = False  # compute the loss where the logits are, and gather only the losses

    one_process: ClassVar = True
    central: ClassVar = True


class Central(StrategyFacts, Schema):
    """The scheme of DataParallel on process groups: rank 0 scatters, gathers and updates."""

    kind: Literal["central"]
    local_loss: bool = False  # compute the loss where the logits are, and gather only the losses

    central: ClassVar = True


class RingHook(HookFacts, Schema):
    """All-reduce as a ring of point-to-point messages: 2(p - 1) steps over p chunks."""

    kind: Literal["ring"]


class CompressHook(HookFacts, Schema):
    """All-reduce in a 16-bit format: half the bytes."""

    kind: Literal["compress"]
    dtype: Literal["fp16", "bf16"]  # format on the wire

    payload: ClassVar = 0.5
    by_backend: ClassVar = True

    @property
    def rounds_to(self) -> NumberFormat:
        return self.dtype


class PowerSgdHook(HookFacts, Schema):
    """All-reduce of a low-rank approximation (arXiv 1905.13727)."""

    kind: Literal["powersgd"]
    rank: Count = 2  # rank of the approximation
    start_step: Annotated[int, Unit("steps")] = Field(default=10, ge=2, le=MOST_STEPS)
    """Steps that all-reduce uncompressed gradients first."""

    payload: ClassVar = None
    keeps_errors: ClassVar = True

    @property
    def steps_before(self) -> int:
        return self.start_step

    def at_once(self) -> Self:
        return self.model_copy(update={"start_step": 2})


class EmulatedLinkHook(HookFacts, LinkModel):
    """The backend's all-reduce, delayed as long as a slower link would take, overlapping backward.

    A limited link on any machine, even between devices of one host.
    """

    kind: Literal["emulated_link"]
    devices: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Devices that the simulated link joins; null for those of the run."""

    @property
    def link(self) -> "EmulatedLinkHook":
        return self


AnyHook = Annotated[
    RingHook | CompressHook | PowerSgdHook | EmulatedLinkHook, Field(discriminator="kind")
]


class Ddp(StrategyFacts, Schema):
    """torch's DistributedDataParallel: one process per device, gradients all-reduced in buckets."""

    kind: Literal["ddp"]
    bucket_mb: Annotated[float, Unit("MiB")] = Field(default=25.0, ge=1e-6, le=1_048_576)
    """Size of a gradient bucket, in MiB (torch: bucket_cap_mb)."""
    static_graph: bool = False
    """Tell DDP that every step uses the same parameters in the same order (torch: static_graph), so
    that it looks for unused ones in the first step only."""
    bucket_view: bool = False
    """Whether gradients are views into the buckets (torch: gradient_as_bucket_view)."""
    overlap: bool = True
    """Reduce buckets during backward; if false, all gradients are reduced before the update."""
    hook: AnyHook | None = None  # how a bucket is reduced; null for the backend's own all-reduce

    buckets: ClassVar = True

    @field_validator("hook")
    @classmethod
    def _hook_overlaps(cls, hook: AnyHook | None, info: ValidationInfo) -> AnyHook | None:
        if hook is not None and not info.data.get("overlap", True):
            message = "is called during backward, but overlap is false"
            raise refusal(message, "set overlap: true, or hook: null")
        return hook


class Fsdp(StrategyFacts, Schema):
    """torch's fully_shard (FSDP2): parameters, gradients and optimizer state in shards."""

    kind: Literal["fsdp"]
    reshard_after_forward: bool = True
    """Free a layer's gathered parameters after its forward pass, and gather them again for
    backward."""
    bf16: bool = False
    """Gather parameters and compute in bfloat16 (MixedPrecisionPolicy), reduce in float32."""

    sharded: ClassVar = True


class TensorParallel(StrategyFacts, Schema):
    """Tensor parallelism (arXiv 1909.08053) by DTensor: neighboring ranks share the heads and the
    feed-forward columns of each layer of a decoder-only model, without dropout. Several such groups
    shard their weights by FSDP2."""

    kind: Literal["tensor"]
    ranks: Annotated[int, Field(ge=2, le=128)] = 2
    """Ranks that share each layer; must divide the ranks of the run."""
    sequence: bool = False
    """Divide rows of tokens among them between sub-layers, too (arXiv 2205.05198)."""

    sharded: ClassVar = True


class LocalSteps(StrategyFacts, Schema):
    """Replicas that train apart for some steps, then meet: the average of their changes is one step
    of an outer optimizer with Nesterov momentum (DiLoCo, arXiv 2311.08105). Ranks exchange weights
    only when they meet; this is a different training."""

    kind: Literal["local_steps"]
    every: Annotated[int, Field(ge=1, le=MOST_STEPS), Unit("steps")] = 6
    """Optimizer steps between two meetings; must divide training.steps."""
    outer_rate: float = Field(default=0.7, gt=0, le=10.0)  # learning rate of the outer optimizer
    outer_momentum: float = Field(default=0.9, ge=0, lt=1.0)  # momentum of the outer optimizer

    apart: ClassVar[bool] = True


AnyParallel = Annotated[
    Single | DataParallel | Central | Ddp | Fsdp | TensorParallel | LocalSteps,
    Field(discriminator="kind"),
]


Allocator = Literal["default", "kept", "huge_pages", "tcmalloc", "jemalloc"]
"""Memory allocator of host processes."""
CudaAllocator = Literal["expandable_segments", "default"]
"""How torch allocates memory on a CUDA device."""
Affinity = Literal["none", "cores"]  # cores that threads run on


class Machine(Schema):
    """The devices that a run asks for. Their availability is checked inside the run."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of device; auto uses CUDA if a GPU is available, otherwise the CPU."""
    nodes: Count = 1  # hosts of a distributed run; a single run takes one
    devices_per_node: Annotated[int, Field(ge=1, le=128)] = 2
    """Devices (processes) on each host of a distributed run; a single run takes one."""
    threads: int = Field(default=0, ge=0, le=1_024)
    """CPU threads per process; 0 divides the host's cores evenly."""
    allocator: Allocator = "kept"
    """How host memory is allocated: by the C library with its defaults (default), keeping freed
    memory (kept), also in transparent huge pages (huge_pages), or by an installed library."""
    cuda_allocator: CudaAllocator = "expandable_segments"
    """How torch allocates memory on a CUDA device: in growing segments, which do not fragment
    with batches of many shapes (expandable_segments), or in fixed-size segments, torch's default
    (default), which is unsupported for runs without CUDA."""
    garbage_collection: Literal["automatic", "off"] = "automatic"
    """Whether Python looks for reference cycles whenever it has made enough objects, or (off) only
    at validations, without the objects that exist before the first step (gc.freeze)."""
    affinity: Affinity = "none"
    """Cores that threads run on: wherever the system places them (none), or separate cores for each
    process, with each of torch's threads pinned to one (cores)."""
    kept_kernels: Annotated[int, Field(ge=1, le=100_000)] | None = 256
    """oneDNN kernels that each process caches on a CPU, one for every shape of a bfloat16
    product, at about 1 MiB each. Null is torch's default, some 2,000, or the environment's
    setting."""
    timeout: Annotated[float, Unit("seconds")] = Field(default=600.0, gt=0, le=MOST_SECONDS)
    """Seconds after which an unresponsive peer ends a distributed run."""
    link: Link | None = None
    """Simulate the two hosts on this machine, joined by a link of limited bandwidth; null for
    real hosts and links."""
