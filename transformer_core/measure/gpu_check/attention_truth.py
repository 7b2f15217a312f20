"""Finds out which kernels compute attention, how much they drop, and how exact they are."""

import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from schemas.config.model import AttentionBackend, SdpaAttention
from schemas.errors import Unsupported
from schemas.results import Status
from schemas.results.gpu_check import AttentionTruth, AttentionTruths
from transformer_core.common.files import write_text
from transformer_core.common.job import Job
from transformer_core.common.progress import log
from transformer_core.measure.gpu_check.device_facts import no_device
from transformer_core.models.attention import (
    additive,
    build_attention,
    leave_out_cudnn,
    reference_attention,
)
from transformer_core.run.statuses import Outcome

SHAPE = (8, 8, 64, 64)
"""[b, h, n, k], with as many keys as elements, so that the identity matrix can serve as values."""
DROPOUTS = (0.0, 0.1)
KERNELS_TOLD = 3

Attend = Callable[..., Tensor]


def dropped_share(
    attend: Attend, dropout: float, device: torch.device, dtype: torch.dtype
) -> float:
    """Share of attention weights that ``attend`` drops at this ``dropout``.

    With the identity as values, the result is the matrix of weights. All keys have the same weight,
    so a weight of 0 was dropped.
    """
    b, h, n, k = SHAPE
    q = torch.zeros(b, h, n, k, device=device, dtype=dtype)
    eye = torch.eye(n, k, device=device, dtype=dtype).expand(b, h, n, k).contiguous()
    weights = attend(q, torch.zeros_like(q), eye, None, False, dropout)
    return float((weights == 0).float().mean())


def relative_error(
    attend: Attend, mask: Tensor | None, device: torch.device, dtype: torch.dtype
) -> float:
    """Relative error (by norms) compared with attention in 64 bits; without dropout."""
    inputs = _random(device, dtype)
    ours = attend(*inputs, _for_kernel(mask, dtype), False, 0.0)
    q, k, v = (x.double() for x in inputs)
    exact = reference_attention(q, k, v, mask, False, 0.0)
    return float((ours.double() - exact).norm() / exact.norm())


def all_finite(attend: Attend, masked: bool, dropout: float, device: Any, dtype: Any) -> bool:
    """Whether values and gradients are finite, even if a row masks all its keys."""
    inputs = [x.requires_grad_() for x in _random(device, dtype)]
    mask = padding(device, nothing_left=True) if masked else None
    heads = attend(*inputs, _for_kernel(mask, dtype), False, dropout)
    heads.float().square().sum().backward()
    grads = [x.grad for x in inputs if x.grad is not None]
    return all(bool(x.isfinite().all()) for x in (heads, *grads))


def padding(device: torch.device, nothing_left: bool = False) -> Tensor:
    """A mask [b, 1, 1, n] for sentences of all lengths; on request, one is fully masked."""
    b, _, n, _ = SHAPE
    lengths = torch.linspace(n // 4, n, b, device=device).long()
    if nothing_left:
        lengths[0] = 0
    return (torch.arange(n, device=device) < lengths[:, None])[:, None, None, :]


def truth(backend: AttentionBackend, masked: bool, dropout: float) -> AttentionTruth:
    device, dtype = torch.device("cuda", 0), torch.bfloat16
    attend = build_attention(SdpaAttention(backend=backend))
    known: dict[str, Any] = {"backend": backend, "masked": masked, "dropout": dropout}
    mask = padding(device) if masked else None
    try:
        finite = all_finite(attend, masked, dropout, device, dtype)
        kernels, seconds = _observed(attend, mask, dropout, device, dtype)
        error = None if dropout else relative_error(attend, mask, device, dtype)
        dropped = dropped_share(attend, dropout, device, dtype) if dropout else None
    except RuntimeError as problem:
        status: Status = "unsupported" if isinstance(problem, Unsupported) else "failed"
        return Outcome(status=status, reason=str(problem)).result(AttentionTruth, **known)
    known |= {"kernels": kernels, "dropped": dropped, "error": error}
    known |= {"finite": finite, "seconds": seconds}
    return Outcome(status="ok", reason=None).result(AttentionTruth, **known)


def _observed(
    attend: Attend, mask: Tensor | None, dropout: float, device: torch.device, dtype: torch.dtype
) -> tuple[list[str], float]:
    """The longest kernels of a forward and backward pass, and the seconds of another."""
    inputs = [x.requires_grad_() for x in _random(device, dtype)]
    bias = _for_kernel(mask, dtype)

    def once() -> None:
        attend(*inputs, bias, False, dropout).float().sum().backward()

    once()
    torch.cuda.synchronize(device)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        once()
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    once()
    torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    events = sorted(profile.key_averages(), key=lambda e: e.device_time_total, reverse=True)
    return [event.key for event in events[:KERNELS_TOLD]], seconds


def _random(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(SHAPE, device=device).to(dtype) for _ in range(3)]


def _for_kernel(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The mask as models pass it: numbers on a GPU."""
    return mask if mask is None or mask.device.type == "cpu" else additive(mask, dtype)


def measure() -> AttentionTruths:
    reason, cases = no_device(), []
    if reason is None:
        torch.manual_seed(0)
        leave_out_cudnn()
        for case in product(get_args(AttentionBackend), (False, True), DROPOUTS):
            cases.append(truth(*case))
            log.info("%s", cases[-1].model_dump_json())
    return AttentionTruths(
        status="unsupported" if reason else "ok",
        reason=reason,
        dtype="bfloat16",
        shape=list(SHAPE),
        cases=cases,
    )


class AttentionTruthJob(Job):
    """Finds out which kernels compute attention on the GPU, and what they drop."""

    kind = "attention_truth"

    output: Path
    """attention.json to write."""

    def run(self, log_file: Path | None) -> None:
        found = measure()
        write_text(self.output, found.model_dump_json(indent=1) + "\n")
