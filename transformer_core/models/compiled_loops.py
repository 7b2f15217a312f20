"""Compiled loops over tensors on a CPU: dropout, softmax of attention, loss, updates of masters.

numba has no bfloat16, so loops take such arrays as uint16. They read and write the numbers as the
upper halves of 32-bit numbers, in which they compute.

Loops run on torch's own operator threads. These spin for some milliseconds while they wait for work,
and would take the cores away from any other threads.

A dropout mask is a hash of each element's place and of a seed of the call, as in counter-based
generators (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011), so the backward pass
computes it again instead of storing it. The hash mixes 32 bits by two multiplications and shifts,
with the constants of C. Wellons' search (lowbias32, github.com/skeeto/hash-prospector). The second
half of the seed enters between them, so that the masks of two seeds are not shifted copies of one
sequence.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import ctypes
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
import torch
from numba import njit, types, uint32
from numba.extending import overload
from numpy.typing import NDArray
from torch import Tensor

SUMS = {"reassoc", "contract", "nsz"}
"""Allowed compiler optimizations: reordering sums, but not assuming that there are no NaNs."""
LOWEST = np.float32(-3.0e38)  # the initial value of a maximum, and the value of a hidden element
_LEAST = 2**15  # number of elements below which a second thread costs more than it saves


def array_of(x: Tensor) -> NDArray[Any]:
    """The elements of a CPU tensor as a flat array, bfloat16 as uint16. Shares the memory of a
    contiguous tensor."""
    flat = x.detach().contiguous().view(-1)
    if x.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy().view(np.uint16)
    return flat.numpy()


def in_pieces(work: Callable[[int, int], None], count: int, weight: int = 1) -> None:
    """Calls ``work(start, stop)`` on pieces of ``count`` items, one for each of torch's threads; each
    item has ``weight`` elements. Raises an error of a piece after all have ended."""
    threads = torch.get_num_threads()
    size = count if count * weight < threads * _LEAST else -(-count // threads)
    starts = range(0, count, max(1, size))
    left = iter(starts)  # one step of it is atomic
    errors: list[BaseException] = []
    came: set[int] = set()

    def pieces() -> None:
        """Works on the remaining pieces, since the runtime decides how many threads take part."""
        try:
            came.add(get_ident())
            for start in left:
                work(start, min(start + size, count))
        except BaseException as error:
            errors.append(error)

    if len(starts) > 1:
        _on_threads()(pieces, len(starts))
    else:
        pieces()
    if errors:
        raise errors[0]
    # ctypes prints and drops an exception that a signal raises just before C calls Python.
    if get_ident() not in came:
        raise KeyboardInterrupt


_Run = Callable[[Callable[[], None], int], None]
"""(work, threads): calls the work on each of so many threads, including this one."""


@cache
def _on_threads() -> _Run:
    """Runs on torch's threads if its OpenMP library has GCC's entry point, as LLVM's and Intel's
    have; otherwise on a thread pool."""
    try:
        torchs = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        parallel = torchs.GOMP_parallel
    except (AttributeError, OSError):
        return _on_pool
    # void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags)
    form = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    parallel.argtypes = (form, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None

    def run(work: Callable[[], None], threads: int) -> None:
        parallel(form(lambda _: work()), None, threads, 0)

    return run


def _on_pool(work: Callable[[], None], threads: int) -> None:
    waiting = [_pool(threads).submit(work) for _ in range(threads - 1)]
    work()
    for done in waiting:
        done.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, "loop")


def _compiled(**options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Compiles a loop, and keeps it on disk for the next process if this user may write anywhere."""

    def compiled(loop: Callable[..., None]) -> Callable[..., None]:
        try:
            return njit(nogil=True, cache=True, **options)(loop)
        except RuntimeError:
            return njit(nogil=True, **options)(loop)

    return compiled


def wide(x):
    """Converts an element of an array to a 32-bit number. Only for compiled loops."""
    raise NotImplementedError


def like(element, value):
    """Converts a 32-bit number to the format of the array that holds ``element``: 16 bits round to
    nearest, ties to even. Only for compiled loops."""
    raise NotImplementedError


@njit(inline="always")
def _widened(bits):
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@njit(inline="always")
def _narrowed(value):
    bits = np.float32(value).view(np.uint32)
    odd = np.uint32((bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16(np.uint32(bits + odd + np.uint32(0x7FFF)) >> np.uint32(16))


@overload(wide, inline="always")
def _wide(x):
    return (lambda x: _widened(x)) if x == types.uint16 else (lambda x: x)


@overload(like, inline="always")
def _like(element, value):
    if element == types.uint16:
        return lambda element, value: _narrowed(value)
    return lambda element, value: value


@njit(inline="always")
def exp_of(x):
    """e to the power of x, which is at most 0; almost 0 below -87.

    A polynomial after Cody and Waite (Software Manual for the Elementary Functions, 1980), which
    compiles to vector instructions; its relative error is below 3e-7.
    """
    x = max(np.float32(x), np.float32(-87.0))
    whole = np.int32(x * np.float32(1.44269504) - np.float32(0.5))  # towards 0: x is not positive
    r = x - np.float32(whole) * np.float32(0.693359375)
    r = r + np.float32(whole) * np.float32(2.12194440e-4)
    power = np.float32(1 / 5040)
    for factor in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        power = power * r + np.float32(factor)
    return power * np.int32((whole + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(fastmath=True, inline="always")
def larger(x, y):
    """The larger of two numbers; does not propagate NaNs."""
    return x if x > y else y


@njit(inline="always")
def is_kept(place, low, high, threshold):
    """Whether dropout keeps the element at ``place``, given the two halves of a seed."""
    x = uint32(uint32(place) + low)
    x = uint32(x ^ (x >> uint32(16)))
    x = uint32(x * uint32(0x7FEB352D))
    x = uint32(x ^ high)
    x = uint32(x ^ (x >> uint32(15)))
    x = uint32(x * uint32(0x846CA68B))
    x = uint32(x ^ (x >> uint32(16)))
    return x >= threshold


@_compiled(fastmath=True)
def _add(result, x, residual, first, low, high, threshold, scale):
    for i in range(len(x)):
        kept = is_kept(first + i, low, high, threshold)
        result[i] = like(
            result[i], wide(residual[i]) + (wide(x[i]) * scale if kept else np.float32(0))
        )


@_compiled(fastmath=True)
def _scale(result, x, _, first, low, high, threshold, scale):
    for i in range(len(x)):
        kept = is_kept(first + i, low, high, threshold)
        result[i] = like(result[i], wide(x[i]) * scale if kept else np.float32(0))


@_compiled(fastmath=SUMS)
def _relu(result, x, _, first, low, high, threshold, scale):
    for i in range(len(x)):
        kept = is_kept(first + i, low, high, threshold)
        value = wide(x[i])
        # A NaN is neither, and stays.
        result[i] = like(result[i], np.float32(0) if value <= 0 or not kept else value * scale)


@_compiled(fastmath=True)
def _where(result, x, other, first, low, high, threshold, scale):
    for i in range(len(x)):
        result[i] = like(result[i], wide(x[i]) * scale if wide(other[i]) > 0 else np.float32(0))


def kept(x: Tensor, seed: int, p: float, form: torch.dtype | None = None) -> Tensor:
    """Drops each element of x with probability ``p`` and divides the others by 1 - p; the result has
    the format ``form``, or that of x."""
    return _shared(_scale, x, x, seed, p, form)


def added(residual: Tensor, x: Tensor, seed: int, p: float) -> Tensor:
    """``residual`` plus :func:`kept` of x, both of one shape."""
    return _shared(_add, x, residual, seed, p)


def positive(x: Tensor, seed: int, p: float) -> Tensor:
    """:func:`kept` of max(x, 0)."""
    return _shared(_relu, x, x, seed, p)


def where_positive(gradient: Tensor, result: Tensor, p: float) -> Tensor:
    """The gradient of :func:`positive`, from its result: the gradient over 1 - p where that is not
    0."""
    return _shared(_where, gradient, result, 0, p)


def constants(seed: int, p: float) -> tuple[np.uint32, np.uint32, np.uint32, np.float32]:
    """The arguments of :func:`is_kept` after the place, and the factor of kept elements."""
    return (
        np.uint32(seed & 0xFFFFFFFF),
        np.uint32(seed >> 32 & 0xFFFFFFFF),
        np.uint32(min(round(p * 2**32), 2**32 - 1)),
        np.float32(1 / (1 - p)),
    )


def _shared(
    loop: Callable[..., None],
    x: Tensor,
    other: Tensor,
    seed: int,
    p: float,
    form: torch.dtype | None = None,
) -> Tensor:
    """Runs ``loop`` on pieces of CPU tensors; the result has the format ``form``, or that of
    ``other``."""
    result = torch.empty(x.shape, dtype=form or other.dtype)
    arrays = [array_of(t) for t in (result, x, other)]
    numbers = constants(seed, p)

    def piece(start: int, stop: int) -> None:
        loop(*(array[start:stop] for array in arrays), np.int64(start), *numbers)

    in_pieces(piece, x.numel())
    return result


_LANES = 16
"""Loops round the length of rows up to a multiple of this, so that no elements remain for slow
scalar code."""


@_compiled(fastmath=SUMS, error_model="numpy")
def _softmax(weights, scores, hidden, offsets, causal, start, stop, low, high, threshold, scale):
    """Overwrites the rows start to stop of scores [rows, m] with their softmax; ``offsets`` are the
    starts of their masks, and ``causal`` is the number of queries of a sequence, or 0."""
    m = scores.shape[1]
    width = (m + _LANES - 1) // _LANES * _LANES
    work, dropped = np.empty(width, np.float32), np.empty(width, np.float32)
    for row in range(start, stop):
        seen = min(m, row % causal + 1) if causal else m
        given, made = scores[row], weights[row]
        work[seen:] = LOWEST
        for j in range(seen):
            work[j] = wide(given[j])
        if len(hidden):
            mask = hidden[offsets[row] :]
            for j in range(seen):
                work[j] = LOWEST if mask[j] else work[j]
        top = LOWEST
        for j in range(width):
            top = larger(work[j], top)
        for j in range(width):
            shown = np.float32(work[j] != LOWEST)
            work[j] = exp_of(work[j] - top) * shown
        total = np.float32(0)
        for j in range(width):
            total += work[j]
        over = np.float32(1) / total if total != 0 else np.float32(0)
        place = row * m
        for j in range(width):
            work[j] *= over
        for j in range(width):
            kept = is_kept(place + j, low, high, threshold)
            dropped[j] = work[j] * scale if kept else np.float32(0)
        for j in range(m):
            given[j] = like(given[j], work[j])
        for j in range(m):
            made[j] = like(made[j], dropped[j])


@_compiled(fastmath=SUMS, error_model="numpy")
def _softmax_gradient(result, gradient, softmax, start, stop, low, high, threshold, scale):
    """The gradient of the scores, rows start to stop of [rows, m]."""
    m = gradient.shape[1]
    width = (m + _LANES - 1) // _LANES * _LANES
    work, share = np.zeros(width, np.float32), np.zeros(width, np.float32)
    for row in range(start, stop):
        g, p, out = gradient[row], softmax[row], result[row]
        for j in range(m):
            work[j] = wide(g[j])
        for j in range(m):
            share[j] = wide(p[j])
        place, total = row * m, np.float32(0)
        for j in range(width):
            kept = is_kept(place + j, low, high, threshold)
            work[j] = work[j] * scale if kept else np.float32(0)
            total += work[j] * share[j]
        for j in range(m):
            out[j] = like(out[j], share[j] * (work[j] - total))


def weights_of(
    scores: Tensor, mask: Tensor | None, causal: bool, seed: int, p: float
) -> tuple[Tensor, Tensor]:
    """Softmax of scores [b, h, n, m], and the same with elements dropped with probability ``p``.

    mask is boolean, broadcastable to the scores, true for visible keys; with ``causal``, query i
    sees keys 0 to i. The weights of a query without a key are 0. Overwrites contiguous scores.
    """
    softmax, n, m = scores.contiguous(), scores.size(-2), scores.size(-1)
    weights = torch.empty_like(softmax)
    flat = [array_of(x).reshape(-1, m) for x in (weights, softmax)]
    masks, numbers = _hidden(mask, scores), constants(seed, p)
    queries = n if causal else 0
    in_pieces(lambda a, b: _softmax(*flat, *masks, queries, a, b, *numbers), len(flat[0]), m)
    return softmax, weights


def gradient_of(gradient: Tensor, softmax: Tensor, seed: int, p: float) -> Tensor:
    """The gradient of the scores, from that of the weights and the softmax [b, h, n, m]."""
    result, m = torch.empty_like(softmax), softmax.size(-1)
    flat = [array_of(x).reshape(-1, m) for x in (result, gradient, softmax)]
    numbers = constants(seed, p)
    in_pieces(lambda a, b: _softmax_gradient(*flat, a, b, *numbers), len(flat[0]), m)
    return result


def _hidden(mask: Tensor | None, scores: Tensor) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """The inverted mask as a flat array, and the index in it for each row of scores."""
    if mask is None:
        return np.empty(0, np.bool_), np.empty(0, np.int64)
    m = scores.size(-1)
    hidden = (~mask).expand(*mask.shape[:-1], m).contiguous()
    places = torch.arange(0, hidden.numel(), m).view(hidden.shape[:-1])
    return array_of(hidden), array_of(places.expand(scores.shape[:-1]))


@_compiled(fastmath=SUMS, error_model="numpy")
def _loss_of_rows(logits, labels, losses, share, start, stop):
    """Computes the rows start to stop; ``share`` is the target's probability of the label."""
    count = logits.shape[1]
    work = np.empty(count, np.float32)
    for row in range(start, stop):
        x, label = logits[row], labels[row]
        for j in range(count):
            work[j] = wide(x[j])
        top = LOWEST
        for j in range(count):
            top = larger(work[j], top)
        chosen = work[label]
        for j in range(count):
            work[j] = exp_of(work[j] - top)
        total = np.float32(0)
        for j in range(count):
            total += work[j]
        losses[row] = top + np.log(total) - share * chosen
        work[label] -= share * total
        over = np.float32(1) / total
        for j in range(count):
            x[j] = like(x[j], work[j] * over)


def loss_and_gradient(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Loss [n] of logits [n, v] and its gradient, which overwrites the logits; both leave out the
    target's evenly spread share. labels [n], of which none is padding."""
    losses = torch.empty(len(logits), dtype=torch.float32)
    arrays = (array_of(logits).reshape(logits.shape), array_of(labels), array_of(losses))
    share = np.float32(1 - smoothing)
    in_pieces(lambda a, b: _loss_of_rows(*arrays, share, a, b), len(logits), logits.size(1))
    return losses, logits


@_compiled(fastmath={"contract"}, error_model="numpy")
def _update_master(
    weight, gradient, master, first, second, scale, decay, one, two, rate, root, eps
):
    """arXiv 1412.6980, algorithm 1, with decoupled decay; ``rate`` and ``root`` correct a bias."""
    for i in range(len(weight)):
        gradient[i] = like(gradient[i], wide(gradient[i]) * scale)
        g = wide(gradient[i])
        m = one * first[i] + (np.float32(1) - one) * g
        v = two * second[i] + (np.float32(1) - two) * g * g
        first[i], second[i] = m, v
        w = master[i] * decay - rate * m / (np.sqrt(v) * root + eps)
        master[i] = w
        weight[i] = like(weight[i], w)


def update_masters(
    tensors: Sequence[Tensor], step: int, group: Mapping[str, Any], scale: float = 1.0
) -> None:
    """Multiplies the gradient by ``scale``, then updates weight, gradient, master, first and second
    moment in step ``step``, from 1. All have the same shape, and all but the gradient are
    contiguous."""
    arrays = [array_of(tensor) for tensor in tensors]
    one, two = group["betas"]
    if not tensors[1].is_contiguous():
        tensors[1].mul_(scale)
        scale = 1.0
    numbers = (
        scale,
        1 - group["lr"] * group["weight_decay"],
        one,
        two,
        group["lr"] / (1 - one**step),
        (1 - two**step) ** -0.5,
        group["eps"],
    )
    constants = [np.float32(number) for number in numbers]

    def piece(start: int, stop: int) -> None:
        _update_master(*(array[start:stop] for array in arrays), *constants)

    in_pieces(piece, len(arrays[0]))
