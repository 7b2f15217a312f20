"""The link between two hosts, real or imagined."""

import re
from typing import Annotated, Any, Literal

from annotated_types import Unit
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from schemas.base import Schema, Seconds

_UNITS = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
_PATTERN = re.compile(r"\s*(\d{1,18}(?:\.\d{0,18})?)\s*([kMG]?bit/s)\s*")


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


_BitsPerSecond = Annotated[float, Field(gt=0, le=1e15)]
Bandwidth = Annotated[
    _BitsPerSecond,
    BeforeValidator(bits_per_second, json_schema_input_type=_BitsPerSecond | str),
    Unit("bits per second"),
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

    bandwidth: Bandwidth = Field(examples=["100Mbit/s"])
    """Bits per second in each direction, headers included: a number, or text such as 100Mbit/s."""
    emulate: bool = False
    """Emulate the link even where it could be made."""


LinkKind = Literal["namespaces", "emulated"]
"""How a run's link was made."""

Algorithm = Literal["ring", "tree"]
"""How an all-reduce goes over a link."""


class LinkModel(Schema):
    """A link as the alpha-beta model sees it: every message costs a latency and its bytes."""

    bandwidth: Bandwidth = Field(examples=["100Mbit/s"])
    """Bits per second that a device can send, and as many that it can receive at the same time."""
    latency: Seconds = 0.0
    """Seconds that a message takes however short it is."""
    algorithm: Algorithm = "ring"
    """ring: 2(p - 1) steps with 1/p of the bytes each; tree: reduced up a binomial tree and
    broadcast down again, 2 log2(p) steps with all bytes."""


LINK_VARIABLE = "RUN_LINK"
"""Environment of a worker: the :data:`LinkKind` of its link."""

HOST_VARIABLE = "RUN_HOST"
"""Environment of a worker: the name of its host, where that is not the host's own."""
