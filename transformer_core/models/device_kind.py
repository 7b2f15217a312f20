"""The kind of device that a computation is for: that of its tensors, or an imitated one."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer as optimizers
from torch.utils import _foreach_utils as foreach

_IMITATED: list[str] = []


def device_kind(x: Tensor) -> str:
    """The type of the device for which we plan work on ``x``: ``cpu`` or ``cuda``."""
    return _IMITATED[-1] if _IMITATED else x.device.type


@contextmanager
def laid_out_for(kind: str) -> Iterator[None]:
    """Plans work as for devices of this ``kind``, wherever its tensors are.

    For predictions with fake tensors, because a torch without CUDA cannot create fake tensors on
    CUDA devices either. torch's optimizers and clipping take all weights together (foreach), as on
    CUDA.
    """
    modules: tuple[Any, ...] = (optimizers, foreach) if kind == "cuda" else ()
    kinds = [*foreach._get_foreach_kernels_supported_devices(), "cpu"]
    with ExitStack() as stack:
        for module in modules:
            types = [*module._foreach_supported_types, FakeTensor]
            stack.enter_context(
                patch.multiple(
                    module,
                    _get_foreach_kernels_supported_devices=lambda: kinds,
                    _foreach_supported_types=types,
                )
            )
        _IMITATED.append(kind)
        stack.callback(_IMITATED.pop)
        yield
