"""Scaled dot-product attention (arXiv 1706.03762, 3.2.1), one function per kind.

Two arguments tell which keys a query may see:

- ``mask``, boolean, broadcastable to [b, h, n, m], True for visible keys: hides padding of the
  source. If it hides every key of a row, the result is finite but meaningless.
- ``causal``: query i sees keys 0 to i. Decoder self-attention needs no mask besides: padding comes
  after the last token of a sentence, so no real token sees it, and the loss ignores the results of
  padded rows. A flag in place of a mask also lets fused kernels skip the hidden half.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from schemas.config.model import AnyAttention, AttentionBackend, SdpaAttention
from schemas.errors import Unsupported
from transformer_core.models.device_kind import device_kind
from transformer_core.models.dropout import Drop, attention_weights, fits
from transformer_core.models.dropout import dropout as draw

Seen = Tensor | None  # mask of the keys that each query sees; None for all
Attention = Callable[..., Tensor]  # (q, k, v, mask, causal, dropout, drop) -> [b, h, n, k]


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Seen, causal: bool, dropout: float, drop: Drop = draw
) -> Tensor:
    """softmax(q k^T / sqrt(d_k)) v, step by step.

    q [b, h, n, k], k and v [b, h, m, k] -> [b, h, n, k]; ``drop`` drops each attention weight with
    probability ``dropout``.
    """
    # Scaling the queries, not the scores, touches fewer elements and keeps fp16 in range.
    return _weighted((q * q.size(-1) ** -0.5) @ k.transpose(-2, -1), v, mask, causal, dropout, drop)


def _weighted(
    scores: Tensor, v: Tensor, mask: Seen, causal: bool, dropout: float, drop: Drop
) -> Tensor:
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=v.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return drop(scores.softmax(dim=-1), dropout).to(v.dtype) @ v


def published_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Seen, causal: bool, dropout: float, drop: Drop = draw
) -> Tensor:
    """The same as in the Annotated Transformer, which scales the scores after the product.

    Hidden scores become the lowest number of their type; the published -1e9 does not fit into 16
    bits. In decoding, ``causal`` comes without a mask, so we build one.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return _weighted(scores, v, mask, causal, dropout, drop)


def fused_softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Seen, causal: bool, dropout: float, drop: Drop = draw
) -> Tensor:
    """The reference with mask, softmax and dropout in one pass over the scores, if the loop supports
    device and format; a row without a key gives 0."""
    if not dropout or torch.compiler.is_compiling() or not fits(q):
        return reference_attention(q, k, v, mask, causal, dropout, drop)
    scores = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)
    return attention_weights(scores, mask, causal, dropout).to(v.dtype) @ v


def sdpa_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Seen,
    causal: bool,
    dropout: float,
    drop: Drop = draw,
    backend: AttentionBackend = "auto",
) -> Tensor:
    """The same through ``F.scaled_dot_product_attention``, which draws its own dropout, by a CUDA
    kernel that ``backend`` allows. Unsupported if none of them can.

    On a CPU the fused kernel cannot drop attention weights, and torch's unfused way is slower than
    the reference, which we therefore use there with dropout.
    """
    if dropout and not torch.compiler.is_compiling() and device_kind(q) == "cpu":
        return reference_attention(q, k, v, mask, causal, dropout, drop)
    options: dict[str, Any] = {"attn_mask": mask, "dropout_p": dropout, "is_causal": causal}
    attend = partial(F.scaled_dot_product_attention, q, k, v, **options)
    if backend == "auto":
        return attend()
    if device_kind(q) != "cuda":
        raise Unsupported(
            f"model.attention.backend: {backend} is a kernel for CUDA devices; this run is on a "
            f"{device_kind(q)}"
        )
    with sdpa_kernel(_KERNELS[backend]):
        try:
            return attend()
        except RuntimeError as error:
            if not any(words in str(error) for words in _NO_KERNEL):
                raise
            raise Unsupported(no_kernel(backend, q, mask)) from None


_KERNELS = {
    "flash": [SDPBackend.FLASH_ATTENTION],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "cudnn": [SDPBackend.CUDNN_ATTENTION],
    "math": [SDPBackend.MATH],
}
"""The kernel of each backend. Selecting it takes some microseconds in every call."""
_NO_KERNEL = "No available kernel", "No viable backend"  # torch's wordings of that error


def leave_out_cudnn() -> None:
    """Stops torch from choosing cuDNN kernels in this process unless the study names one.

    torch would choose cuDNN without dropout, in validation, but another kernel in training. cuDNN
    also spends tens of milliseconds on a plan for every new shape, and decoding has a new shape at
    every step. Called once, when a model is built: inside compiled layers the call would break the
    graph at every attention.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def no_kernel(backend: str, q: Tensor, mask: Seen) -> str:
    """Explains why no kernel of ``backend`` can compute this, with a remedy."""
    given = f"{str(q.dtype).removeprefix('torch.')}, {q.size(-1)} elements a head"
    masked = "a mask" if mask is not None else "no mask"
    remedies = {
        "flash": (
            "it needs a GPU with compute capability 8.0 or higher, 16 bits (training.precision), no "
            "mask (model.tokens: unpadded), and a multiple of 8 elements a head, at most 256"
        ),
        "cudnn": "it needs 16 bits (training.precision) and a cuDNN that has it for this device",
    }
    remedy = remedies.get(backend, "set model.attention.backend: auto")
    return f"no kernel of {backend} computes attention here ({given}, {masked}): {remedy}"


def takes_sentences(spec: AnyAttention, x: Tensor) -> bool:
    """Whether ``spec`` names the kernel that takes sentences of any lengths without padding, and
    ``x`` is on a device that has it."""
    named = isinstance(spec, SdpaAttention) and spec.backend == "flash"
    return named and device_kind(x) == "cuda"


def flash_over_sentences(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    causal: bool,
    dropout: float,
) -> Tensor:
    """FlashAttention (arXiv 2307.08691) over consecutive sentences without padding.

    q [n, h, k], k and v [m, h, k] -> [n, h, k]. For queries and for keys, ``starts``
    [sentences + 1] int32 are the limits of the sentences, and ``longest`` bounds their length.
    """
    half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else q.dtype
    q, k, v = (x.to(half) for x in (q, k, v))
    if half not in (torch.float16, torch.bfloat16) or q.size(-1) % 8 or q.size(-1) > 256:
        raise Unsupported(no_kernel("flash", q, None))
    kernel = torch.ops.aten._flash_attention_forward
    try:
        return kernel(q, k, v, *starts, *longest, dropout, causal, False)[0]
    except RuntimeError as error:
        if not any(words in str(error) for words in _NO_FLASH):
            raise
        raise Unsupported(no_kernel("flash", q, None)) from None


_NO_FLASH = "only supports Ampere", "USE_FLASH_ATTENTION was not enabled"
"""Wordings of torch's errors on GPUs before Ampere, and in builds without this kernel."""


_ALIGNMENT = 16


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts a boolean mask to numbers that CUDA's kernels add to the scores: 0 for visible keys.

    Converting it once saves every layer from doing so. The stride of its rows is a multiple of 16
    elements, as the memory-efficient kernel requires. Hidden keys get the lowest number rather than
    minus infinity, so that a row without any key stays finite in every kernel.
    """
    width = -(-mask.size(-1) // _ALIGNMENT) * _ALIGNMENT
    room = torch.zeros((*mask.shape[:-1], width), dtype=dtype, device=mask.device)
    return room[..., : mask.size(-1)].masked_fill_(~mask, torch.finfo(dtype).min)


ATTENTIONS: dict[str, Attention] = {
    "reference": reference_attention,
    "sdpa": sdpa_attention,
    "published": published_attention,
    "fused_softmax": fused_softmax_attention,
}
"""Attention by the ``kind`` of its schema."""


def build_attention(spec: AnyAttention) -> Attention:
    attend = ATTENTIONS[spec.kind]
    if isinstance(spec, SdpaAttention) and spec.backend != "auto":
        return partial(attend, backend=spec.backend)
    return attend


def in_decoding(spec: AnyAttention) -> AnyAttention:
    """Returns the attention that replaces ``spec`` in decoding sentences of several lengths, because
    FlashAttention's kernel cannot mask their padding."""
    flash = isinstance(spec, SdpaAttention) and spec.backend == "flash"
    return SdpaAttention() if flash else spec


def mask_for_kernels(spec: AnyAttention, mask: Tensor, weight: Tensor) -> Tensor:
    """Converts ``mask`` once to the form that attention takes in all layers of a model with
    ``weight``."""
    if spec.kind != "sdpa" or device_kind(mask) != "cuda":
        return mask
    device = mask.device.type
    half = torch.is_autocast_enabled(device)
    return additive(mask, torch.get_autocast_dtype(device) if half else weight.dtype)
