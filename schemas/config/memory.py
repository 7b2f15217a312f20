"""Memory settings of a study."""

import re
from typing import Annotated, Any

from annotated_types import Unit
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from schemas.base import Fraction, Name, Schema

_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def _from_text(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]iB|B|)\s*", value)
    if found is None:
        remedy = "write a number and a unit, as 512MiB or 2GiB"
        raise PydanticCustomError("size", "is not a size", {"remedy": remedy})
    return round(float(found[1]) * _UNITS[found[2]])


_Bytes = Annotated[int, Field(ge=1, le=2**50)]
Size = Annotated[
    _Bytes,
    BeforeValidator(_from_text, json_schema_input_type=_Bytes | str),
    Unit("bytes"),
]
"""A number of bytes, or text with a unit: 512MiB, 2GiB."""


class LargestBatch(Schema):
    """The search for the largest batch that fits: doubling, then bisection.

    Every size is tried in fresh processes on batches of the corpus's longest sentences.
    """

    variants: list[Name] = Field(default_factory=list)
    """Variants of the study to search for."""
    limit: Size | None = None
    """Memory available to each process, in bytes or as text (2GiB): on a CPU all writable
    memory, on a GPU what torch's allocator may reserve. Null is the whole device, or an equal
    share of the host."""
    margin: Fraction = 0.05
    """Fraction of the limit that must stay free."""
    resolution: float = Field(default=0.02, ge=1e-4, le=0.5)
    """Largest gap between the answer and the size that fails, as a fraction of the answer; at
    least one pair per micro-batch of each device."""


class MemoryUse(Schema):
    """Memory measurements. Memory is predicted for all variants."""

    anatomy: bool = True
    """Measure how every variant uses memory: a few steps in separate processes."""
    largest_batch: LargestBatch = LargestBatch()
    """The search for the largest batch that fits, and its variants."""
