"""Matrix products of 32 bits on a CPU by oneDNN, in everything that a process computes.

For numbers of 16 bits torch takes oneDNN on a CPU, for those of 32 bits MKL, without a switch. On
CPUs that are not Intel's, MKL leaves half of each register of 512 bits unused, and oneDNN does not.
So torch's operators get another kernel, below autograd: models and losses do not know of it.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from schemas.errors import Unsupported

_OPERATORS = ("mm", "mm.out", "addmm", "addmm.out", "addmm_")
_library: list[torch.library.Library] = []
"""What holds the kernels, while they are in place."""


def take_onednn() -> None:
    """Compute products of 32 bits on CPUs by oneDNN from now on; Unsupported where torch lacks
    it."""
    if _library:
        return
    try:
        _product(torch.ones(2, 2), torch.ones(2, 2))
        before = {name: torch.library.get_kernel(f"aten::{name}", "CPU") for name in _OPERATORS}
    except (AttributeError, RuntimeError) as error:
        raise Unsupported(f"this torch has no oneDNN for 32 bits: {error}") from error
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that another kernel was there before
        for name, kernel in before.items():
            library.impl(name, _kernel(name, kernel), "CPU", with_keyset=True, allow_override=True)
    _library.append(library)


def take_torchs() -> None:
    """Compute them as torch does by itself."""
    while _library:
        _library.pop()._destroy()


def _kernel(name: str, before: Any) -> Callable[..., Tensor]:
    """The kernel of an operator; what oneDNN is not asked for goes to the one ``before``."""
    kernels: dict[str, Callable[..., Tensor]] = {
        "mm": _product,
        "mm.out": lambda a, b, *, out: _into(out, _product(a, b)),
        "addmm": _added,
        "addmm.out": lambda *args, out, **factors: _into(out, _added(*args, **factors)),
        "addmm_": _add_to,
    }
    mine = kernels[name]

    def kernel(keys: Any, *args: Any, **options: Any) -> Tensor:
        tensors = [x for x in args if isinstance(x, Tensor)]
        if all(x.dtype == torch.float32 and x.numel() for x in tensors):
            return mine(*args, **options)
        result: Tensor = before.call_boxed(keys, *args, **options)
        return result

    return kernel


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a [n, k], b [k, m], bias [m] -> [n, m]."""
    # oneDNN reads its second operand in either order, and torch copies the first if its rows are
    # not contiguous. The transposed product may have less to copy.
    if bias is None and a.stride(0) == 1 and a.numel() > b.numel() + a.size(0) * b.size(1):
        return _linear(b.t(), a, None).t().contiguous()
    return _linear(a, b.t(), bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        weight = weight.contiguous()  # of rows with gaps oneDNN has no fast kernel
    result: Tensor = torch.ops.mkldnn._linear_pointwise(
        x.contiguous(), weight, bias, "none", [], ""
    )
    return result


def _added(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if c.dim() == 1 and len(c) == b.size(1) and beta == 1 and alpha == 1:
        return _product(a, b, c.contiguous())
    result = _scaled(a, b, alpha)
    # What stands in c counts nothing with a beta of 0, even if it is no number.
    return result.add_(c, alpha=beta) if beta else result


def _add_to(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if not beta:
        return c.copy_(_scaled(a, b, alpha))
    return (c if beta == 1 else c.mul_(beta)).add_(_product(a, b), alpha=alpha)


def _scaled(a: Tensor, b: Tensor, factor: float) -> Tensor:
    result = _product(a, b)
    return result if factor == 1 else result.mul_(factor)


def _into(out: Tensor, result: Tensor) -> Tensor:
    return out.resize_(result.shape).copy_(result)
