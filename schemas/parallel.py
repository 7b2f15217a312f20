"""Parallel strategies and the devices they run on."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Count, Schema


class Single(Schema):
    """One process, one device."""

    kind: Literal["single"] = "single"


class Ddp(Schema):
    """torch's DistributedDataParallel: one process per device, gradients all-reduced in buckets."""

    kind: Literal["ddp"]
    bucket_mb: float = Field(default=25.0, gt=0)
    """Size of a gradient bucket, in MiB (torch: bucket_cap_mb)."""
    bucket_view: bool = False
    """Whether gradients are views into the buckets (torch: gradient_as_bucket_view)."""


AnyParallel = Annotated[Single | Ddp, Field(discriminator="kind")]


class Machine(Schema):
    """The devices that a run asks for. Whether they exist is found out inside the run."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of device; auto takes CUDA where there is a GPU, else the CPU."""
    nodes: Count = 1
    """Hosts of a distributed run; a single run takes one."""
    devices_per_node: Count = 2
    """Devices (processes) on each host of a distributed run; a single run takes one."""
    threads: int = Field(default=0, ge=0)
    """CPU threads per process; 0 shares the cores of the host evenly."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds after which a silent peer ends a distributed run."""
