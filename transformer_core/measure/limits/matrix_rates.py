"""How fast a device multiplies matrices of random numbers, by number format."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from math import prod

import torch
import torch.nn.functional as F

from schemas.config.training import Fp32, Fp32Onednn, Tf32
from schemas.errors import Unsupported
from schemas.results import MatrixRate, NumberFormat
from transformer_core.measure.limits.stopwatch import Stopwatch
from transformer_core.training.precision import set_matmul

FORMATS: tuple[NumberFormat, ...] = ("fp32", "tf32", "bf16", "fp16")
_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_PATIENCE = 2.0
"""No call is made that will take so many times the time allowed for all its repetitions."""


def matrix_rate(
    watch: Stopwatch, number_format: NumberFormat, largest: int, threads: int | None
) -> MatrixRate:
    """The best rate over square matrices up to ``largest`` and the flat ones of a Transformer."""
    best: tuple[float, list[int]] | None = None
    reason = None
    dtype = _DTYPES[number_format]
    try:
        # Libraries may have a fast kernel for one of the two only: with the second factor as it
        # is, or transposed as linear layers keep it.
        for onednn, transposed in product(_libraries(number_format, watch.device), (False, True)):
            reached = 0.0
            with _products_in(number_format, watch.device, onednn):
                for m, k, n in shapes(largest):
                    flops = 2 * m * k * n
                    if reached and flops / reached > _PATIENCE * watch.seconds:
                        continue  # where the format has no hardware, say
                    rate = flops / watch.best(_product(m, k, n, dtype, watch.device, transposed))
                    reached = max(reached, rate)
                    if best is None or rate > best[0]:
                        best = rate, [m, k, n]
    except (Unsupported, RuntimeError) as error:
        # RuntimeError: what this build cannot multiply, or a size for which there is no memory.
        reason = None if best else str(error).split("\n")[0]
    return MatrixRate(
        format=number_format,
        threads=threads,
        flops_per_second=best[0] if best else None,
        shape=best[1] if best else None,
        reason=reason,
    )


def shapes(largest: int) -> Iterator[tuple[int, int, int]]:
    """[m, k] by [k, n] products to try: square ones, and those of a feed-forward layer, in which
    tokens by width meet width by inner width. Small ones first."""
    sides, side = [largest], 512
    while side < largest:
        sides.append(side)
        side *= 2
    flat = [(largest, 512, 2048), (largest, 2048, 512)]
    yield from sorted([*((side,) * 3 for side in sides), *flat], key=prod)


def _libraries(number_format: NumberFormat, device: torch.device) -> tuple[bool, ...]:
    """Whether oneDNN is asked for instead of torch's choice: both where that may be slower."""
    asked = (
        number_format == "fp32" and device.type == "cpu" and torch.backends.mkldnn.is_available()
    )
    return (False, True) if asked else (False,)


@contextmanager
def _products_in(
    number_format: NumberFormat, device: torch.device, onednn: bool = False
) -> Iterator[None]:
    """Matrix products of 32-bit tensors in this format; Unsupported if the device lacks it."""
    old = device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)
    if number_format == "bf16" and old:
        raise Unsupported("no bfloat16 units, which come with compute capability 8.0")
    in_32_bits = Fp32Onednn(kind="fp32_onednn") if onednn else Fp32()
    set_matmul(Tf32(kind="tf32") if number_format == "tf32" else in_32_bits, device)
    try:
        yield
    finally:
        set_matmul(Fp32(), device)


def _product(
    m: int, k: int, n: int, dtype: torch.dtype, device: torch.device, transposed: bool
) -> Callable[[], object]:
    left = torch.randn(m, k, device=device).to(dtype)
    if transposed:
        weight = torch.randn(n, k, device=device).to(dtype)
        return lambda: F.linear(left, weight)
    right = torch.randn(k, n, device=device).to(dtype)
    return lambda: torch.mm(left, right)
