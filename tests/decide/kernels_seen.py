"""Kernels of a made-up step."""

from schemas.results.runs import StepKernels

KERNELS = StepKernels(
    operators=["aten._flash float32", "aten.addmm float32"],
    attention=["aten._flash float32"],
    update=[],
    compiled=False,
    deterministic=False,
    allocator="glibc 2.36",
    threads=2,
)
