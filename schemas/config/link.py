"""The link between two hosts, and how long a message takes over it."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from schemas.base import Schema, Seconds

_UNITS = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d*)?)\s*([kMG]?bit/s)\s*")


def bits_per_second(value: Any) -> Any:
    """A bandwidth such as ``100Mbit/s`` as a number; what is no text stays as it is."""
    if not isinstance(value, str):
        return value
    found = _PATTERN.fullmatch(value)
    if found is None:
        raise PydanticCustomError(
            "bandwidth",
            "is not a bandwidth",
            {"remedy": "write a number and a unit: kbit/s, Mbit/s or Gbit/s, such as 100Mbit/s"},
        )
    return float(found[1]) * _UNITS[found[2]]


Bandwidth = Annotated[
    float,
    BeforeValidator(bits_per_second, json_schema_input_type=float | str),
    Field(gt=0),
]
"""Bits per second; in a file also as text with a unit, such as 1Gbit/s."""


def show_bandwidth(bits: float) -> str:
    """A bandwidth with the unit that suits it, such as 100 Mbit/s."""
    unit = max(
        (u for u in _UNITS.items() if bits >= u[1]), key=lambda u: u[1], default=("bit/s", 1)
    )
    return f"{bits / unit[1]:g} {unit[0]}"


class Link(Schema):
    """A rate-limited connection between two hosts that are made on this machine.

    Each host is a network namespace, and a pair of virtual network devices joins them. Where that
    is not allowed, the link is emulated (parallel.hook of kind emulated_link), and the results
    say so.
    """

    bandwidth: Bandwidth
    """Bits per second in each direction, headers included: a number, or text such as 100Mbit/s."""
    emulate: bool = False
    """Emulate the link even where it could be made."""


LinkKind = Literal["namespaces", "emulated"]
"""How a run's link was made."""

Algorithm = Literal["ring", "tree"]
"""How an all-reduce goes over a link."""

PAYLOAD_SHARE = 1448 / 1514
"""Share of the bits on an Ethernet that TCP delivers: of a frame of 1,514 bytes, 14 are Ethernet's,
20 IPv4's and 32 TCP's with its time stamps (RFC 894, RFC 791, RFC 7323)."""


_BURST_BYTES, _BURST_SECONDS = 16 * 1024, 0.001


def burst_bytes(bandwidth: float) -> int:
    """What a limited link of ``bandwidth`` bits per second lets through at once after a rest.

    A rate limit needs it to be kept at all, and with little of it short messages cost what they
    should.
    """
    return max(_BURST_BYTES, round(bandwidth / 8 * _BURST_SECONDS))


def burst_seconds(bandwidth: float) -> float:
    """How long the link needs for :func:`burst_bytes` otherwise, and to gather them again."""
    return 8 * burst_bytes(bandwidth) / bandwidth


class LinkModel(Schema):
    """A link as the alpha-beta model sees it: every message costs a latency and its bytes."""

    bandwidth: Bandwidth
    """Bits per second that a device can send, and as many that it can receive at the same time."""
    latency: Seconds = 0.0
    """Seconds that a message takes however short it is."""
    algorithm: Algorithm = "ring"
    """ring: 2(p - 1) steps with 1/p of the bytes each; tree: reduced up a binomial tree and
    broadcast down again, 2 log2(p) steps with all bytes."""

    def send_seconds(self, size: float) -> float:
        """Time of one message of ``size`` bytes."""
        return self.latency + 8 * size / self.bandwidth

    def all_reduce_seconds(self, size: float, devices: int) -> float:
        """Time to all-reduce ``size`` bytes over ``devices`` devices.

        Ring: Patarasuk and Yuan, JPDC 69, 2009. Tree: Thakur, Rabenseifner and Gropp,
        Optimization of Collective Communication Operations in MPICH, IJHPCA 19, 2005.
        """
        if devices == 1:
            return 0.0
        if self.algorithm == "tree":
            return 2 * (devices - 1).bit_length() * self.send_seconds(size)
        return 2 * (devices - 1) * self.send_seconds(size / devices)

    def gather_seconds(self, size: float, devices: int) -> float:
        """Time of a ring all-gather, or reduce-scatter, of ``size`` bytes in all."""
        return (devices - 1) * self.send_seconds(size / devices)

    def broadcast_seconds(self, size: float, devices: int) -> float:
        """Time to broadcast ``size`` bytes, or to reduce them to one device: a binomial tree."""
        return (devices - 1).bit_length() * self.send_seconds(size)

    def scatter_seconds(self, size: float, devices: int) -> float:
        """Time of one device to send everybody's share of ``size`` bytes, or to gather them."""
        return (devices - 1) * self.send_seconds(size / devices)


LINK_VARIABLE = "RUN_LINK"
"""Environment of a worker: the :data:`LinkKind` of its link."""

HOST_VARIABLE = "RUN_HOST"
"""Environment of a worker: the name of its host, where that is not the host's own."""
