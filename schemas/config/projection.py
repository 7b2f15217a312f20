"""Links that are checked, and projections to more devices: settings of a study."""

from typing import Any

from pydantic import Field

from schemas.base import Count, Name, Schema
from schemas.link import Bandwidth, LinkModel

LINK_CHECKS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "small_buckets": {"parallel": {"bucket_mb": 0.25}},
    "fp16_compress": {"parallel": {"hook": {"kind": "compress", "dtype": "fp16"}}},
    "accumulation_sync": {
        "training": {"accumulation": {"micro_batches": 4, "synchronise": "every"}}
    },
    "accumulation_no_sync": {
        "training": {"accumulation": {"micro_batches": 4, "synchronise": "last"}}
    },
}
"""Changes to DistributedDataParallel with which the emulated link is checked."""


class LinkCheck(Schema):
    """How the emulated link is held against the real one: the same runs over both, in turns."""

    bandwidths: list[Bandwidth] = Field(default=[1e8, 3e8, 1e9], min_length=1)
    """Bits per second, or text such as 100Mbit/s."""


class Projecting(Schema):
    """How the times of more devices are worked out from those of one."""

    steps: Count = 6
    """Steps whose parts are timed on every device, without communication."""
    warmup_steps: Count = 3
    """Steps before them."""
    devices: Count = 1024
    """Most devices that are imagined; powers of two up to it."""
    links: dict[Name, LinkModel] = Field(
        default={
            "ethernet_1gbit": LinkModel(bandwidth=1e9, latency=50e-6),
            "ethernet_25gbit": LinkModel(bandwidth=25e9, latency=20e-6),
            "infiniband_400gbit": LinkModel(bandwidth=400e9, latency=5e-6),
        }
    )
    """Links that are imagined between the devices, by a name for each, beside the measured one.
    Given, not measured: orders of magnitude, to be replaced by what you know of yours."""
