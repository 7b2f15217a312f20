"""The link between two hosts, real or simulated."""

import re
from typing import Annotated, Any, Literal

from annotated_types import Unit
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from schemas.base import Schema, Seconds

_UNITS = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
_PATTERN = re.compile(r"\s*(\d{1,18}(?:\.\d{0,18})?)\s*([kMG]?bit/s)\s*")


def bits_per_second(value: Any) -> Any:
    """A bandwidth such as ``100Mbit/s`` as a number; values other than text are returned
    unchanged."""
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
    emulate: bool = False
    """Emulate the link even if it could be created."""


LinkKind = Literal["namespaces", "emulated"]
"""How a run's link was created."""

Algorithm = Literal["ring", "tree"]
"""How an all-reduce uses a link."""


class LinkModel(Schema):
    """A link in the alpha-beta model: every message costs a latency plus time for its bytes."""

    bandwidth: Bandwidth = Field(examples=["100Mbit/s"])
    """Bits per second that a device can send, and can receive at the same time."""
    latency: Seconds = 0.0
    """Seconds that any message takes, however short."""
    algorithm: Algorithm = "ring"
    """ring: 2(p - 1) steps, each with 1/p of the bytes; tree: a reduction up a binomial tree and
    a broadcast back down, 2 log2(p) steps with all bytes."""


LINK_VARIABLE = "RUN_LINK"
"""Environment variable of a worker: the :data:`LinkKind` of its link."""

HOST_VARIABLE = "RUN_HOST"
"""Environment variable of a worker: the name of its host, if it differs from the real one."""
