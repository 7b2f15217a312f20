"""Dropout, residual addition and layer normalization between two products in one kernel."""

from typing import TYPE_CHECKING, ClassVar, Literal

from schemas.base import Schema
from schemas.errors import Unsupported

if TYPE_CHECKING:
    from torch import Tensor, nn


class ResidualNorm(Schema):
    """Dropout of a sub-layer, the residual addition and the layer normalization behind it in one
    kernel of Triton, forward and backward, for GPUs: the residual stream is read and written once
    between two products. Masks are drawn again in the backward pass instead of kept."""

    kind: Literal["with_residual"]

    by_sample_deviation: ClassVar = False


def added_and_normalized(
    residual: "Tensor", x: "Tensor", norm: "nn.LayerNorm", p: float, kind: str, post: bool = False
) -> "tuple[Tensor, Tensor]":
    """residual + dropout(x), in the format of ``residual``, and its layer normalization, in that of
    x, or with ``post``, where it becomes the residual stream, of ``residual``; all [..., d].

    ``kind`` is the kind of device for which we plan the work. Raises Unsupported if it has no such
    kernel. Tensors without memory use the operations that the kernel replaces.
    """
    import torch

    if kind != "cuda":
        raise Unsupported(
            "model.norm_method: with_residual is a kernel of Triton for GPUs; this run is on a "
            f"{kind}: use fused"
        )
    if not x.is_cuda or type(x) is not torch.Tensor:
        return by_torch(residual, x, norm, p, post)
    try:
        from transformer_core.techniques.gpu_kernels import AddedAndNormalized
    except ImportError as error:
        raise Unsupported(f"model.norm_method: with_residual needs Triton ({error})") from None
    # Triton's generator takes 31 bits of a seed. We draw it on the host, so that nothing waits.
    seed = int(torch.randint(2**31 - 1, ())) if p else 0
    return AddedAndNormalized.apply(residual, x, norm.weight, norm.bias, p, norm.eps, seed, post)


def by_torch(
    residual: "Tensor", x: "Tensor", norm: "nn.LayerNorm", p: float, post: bool = False
) -> "tuple[Tensor, Tensor]":
    """The same by separate operations of torch."""
    import torch.nn.functional as F

    total = residual + F.dropout(x, p)
    normed = F.layer_norm(
        total.float(), norm.normalized_shape, norm.weight.float(), norm.bias.float(), norm.eps
    )
    return total.to(residual.dtype), normed.to((residual if post else x).dtype)
