"""Link checks and projections to more devices: settings of a study."""

from typing import Annotated

from annotated_types import Unit
from pydantic import Field

from schemas.base import Name, Schema, Steps
from schemas.config.link import Bandwidth, LinkModel


class LinkCheck(Schema):
    """How the emulated link is checked against the real one: the same runs over both, in turns."""

    bandwidths: list[Bandwidth] = Field(default=[1e8, 3e8, 1e9], min_length=1, max_length=100)
    """Bits per second, or text such as 100Mbit/s."""


class Projecting(Schema):
    """How step times on more devices are projected from one device."""

    steps: Annotated[int, Field(ge=1, le=1_000), Unit("steps")] = 6
    """Steps whose parts are timed on every device, without communication."""
    warmup_steps: Steps = 3
    """Steps before them."""
    devices: Annotated[int, Field(ge=1, le=1_048_576)] = 1024
    """Maximum number of devices; the projection uses powers of two up to it."""
    links: dict[Name, LinkModel] = Field(
        default={
            "ethernet_1gbit": LinkModel(bandwidth=1e9, latency=50e-6),
            "ethernet_25gbit": LinkModel(bandwidth=25e9, latency=20e-6),
            "infiniband_400gbit": LinkModel(bandwidth=400e9, latency=5e-6),
        }
    )
    """Hypothetical links between the devices, by name, in addition to the measured one. These
    are assumed orders of magnitude: replace them with values for your links."""
