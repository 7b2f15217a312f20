"""The memory of CUDA's kernels, on fake tensors of the CPU.

Where there is no GPU, torch cannot take fake tensors of one through a backward pass. So those of
the CPU stand for them, and the operations whose memory depends on the device are replaced by what
CUDA takes in their place: attention without its weights, dropout with a mask of a byte, and the
operations that CUDA's autocast computes in 32 bits (PyTorch, "Autocast Op Reference").
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from transformer_core.models.device_kind import laid_out_for


@contextmanager
def imitated_cuda() -> Iterator[None]:
    """Take the memory that CUDA's kernels would."""
    with laid_out_for("cuda"), _CudaKernels():
        yield


class _CudaKernels(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _INSTEAD.get(func, func)(*args, **(kwargs or {}))


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> Tensor:
    """The memory-efficient kernel; that of FlashAttention keeps as much."""
    fused = torch.backends.cuda
    if not (fused.mem_efficient_sdp_enabled() or fused.flash_sdp_enabled()):
        return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal)
    if attn_mask is not None:
        shape = (q.size(0), q.size(1), q.size(2), k.size(2))
        attn_mask = attn_mask.to(q.dtype).expand(shape)
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    heads: Tensor = kernel(q, k, v, attn_mask, True, dropout_p, is_causal)[0]
    return heads


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(x, p, True)[0] if training and p else x


def _in_32_bits(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def wide(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return function(x.float() if torch.is_autocast_enabled("cpu") else x, *args, **kwargs)

    return wide


_INSTEAD: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: _attention,
    F.dropout: _dropout,
    **{
        function: _in_32_bits(function)
        for function in (
            F.layer_norm,
            F.softmax,
            F.log_softmax,
            torch.softmax,
            torch.log_softmax,
            Tensor.softmax,
            Tensor.log_softmax,
        )
    },
}
