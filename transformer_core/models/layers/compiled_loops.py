"""What compiled loops over tensors on a CPU share: numbers of 16 bits, and a thread for each piece.

numba has no bfloat16. A loop takes an array of such numbers as one of uint16, and reads and writes
them as the upper halves of numbers of 32 bits, in which it computes.

Pieces run on the very threads that compute torch's operators. Those wait for their next work by
looking for it all the time, for some milliseconds, and would take the cores from any other threads.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
import torch
from numba import njit, types
from numba.extending import overload
from numpy.typing import NDArray
from torch import Tensor

SUMS = {"reassoc", "contract", "nsz"}
"""What the compiler may do: add in another order. It may not take it that no number is NaN."""
LOWEST = np.float32(-3.0e38)
"""What a maximum begins with, and what stands for an element that is hidden."""
_LEAST = 2**15
"""Elements below which a second thread costs more than it saves."""


def array_of(x: Tensor) -> NDArray[Any]:
    """The elements of a tensor on the CPU in a row, bfloat16 as uint16: its memory where it is
    contiguous."""
    flat = x.detach().contiguous().view(-1)
    if x.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy().view(np.uint16)
    return flat.numpy()


def in_pieces(work: Callable[[int, int], None], count: int, weight: int = 1) -> None:
    """``work(start, stop)`` on pieces of ``count`` things, one for each of torch's threads; each
    thing is ``weight`` elements. An error of a piece is raised when all have ended."""
    threads = torch.get_num_threads()
    size = count if count * weight < threads * _LEAST else -(-count // threads)
    starts = list(range(0, count, max(1, size)))
    errors: list[BaseException] = []
    came: set[int] = set()

    def pieces() -> None:
        """Those that are left: how many threads come is not for this one to say."""
        try:
            came.add(get_ident())
            while (start := _next(starts)) is not None:
                work(start, min(start + size, count))
        except BaseException as error:
            errors.append(error)

    if len(starts) > 1:
        _on_threads()(pieces, len(starts))
    else:
        pieces()
    if errors:
        raise errors[0]
    # What a signal raises just before C calls Python is printed there, and lost.
    if get_ident() not in came:
        raise KeyboardInterrupt


def _next(starts: list[int]) -> int | None:
    with suppress(IndexError):  # between a look and a grasp another thread may be faster
        return starts.pop()
    return None


_Run = Callable[[Callable[[], None], int], None]
"""(work, threads): do the work on each of the threads, this one among them."""


@cache
def _on_threads() -> _Run:
    """On those of torch where it computes by OpenMP and its library has GCC's way in, as LLVM's and
    Intel's have; else on threads of a pool."""
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


def wide(x):  # type: ignore[no-untyped-def]
    """An element of an array as a number of 32 bits. For compiled loops only."""
    raise NotImplementedError


def like(element, value):  # type: ignore[no-untyped-def]
    """A number of 32 bits as the array has them that ``element`` is from: to the nearest of 16 bits
    (ties to even). For compiled loops only."""
    raise NotImplementedError


@njit(inline="always")
def _widened(bits):  # type: ignore[no-untyped-def]
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@njit(inline="always")
def _narrowed(value):  # type: ignore[no-untyped-def]
    bits = np.float32(value).view(np.uint32)
    odd = np.uint32((bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16(np.uint32(bits + odd + np.uint32(0x7FFF)) >> np.uint32(16))


@overload(wide, inline="always")
def _wide(x):  # type: ignore[no-untyped-def]
    return (lambda x: _widened(x)) if x == types.uint16 else (lambda x: x)


@overload(like, inline="always")
def _like(element, value):  # type: ignore[no-untyped-def]
    if element == types.uint16:
        return lambda element, value: _narrowed(value)
    return lambda element, value: value


@njit(inline="always")
def exp_of(x):  # type: ignore[no-untyped-def]
    """e to the power of x, which is at most 0; next to nothing below -87.

    A polynomial after Cody and Waite (Software Manual for the Elementary Functions, 1980), so that
    a loop of it becomes vector instructions; its relative error is below 3e-7.
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
def larger(x, y):  # type: ignore[no-untyped-def]
    """The larger of two; of no use to find what is no number."""
    return x if x > y else y
