"""Which kind of device a computation is for: that of its tensors, or one that is imitated."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_IMITATED: list[str] = []


def device_kind(x: Tensor) -> str:
    """The type of the device that work on ``x`` is laid out for: ``cpu``, ``cuda``."""
    return _IMITATED[-1] if _IMITATED else x.device.type


@contextmanager
def laid_out_for(kind: str) -> Iterator[None]:
    """Lay work out as for devices of this ``kind``, wherever its tensors are.

    For predictions on tensors without memory: a torch without CUDA has no tensors of CUDA devices,
    not even such.
    """
    _IMITATED.append(kind)
    try:
        yield
    finally:
        _IMITATED.pop()
