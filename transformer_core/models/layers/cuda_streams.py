"""Work on CUDA streams of its own, so that kernels too small to fill a device can run side by side.

Leaving the current stream takes two precautions:

- Order. A side stream knows nothing of the kernels that still fill its input, nor does the current
  stream know when the results are there. Events say so, without making the host wait.
- Memory. When a tensor dies, the allocator hands its memory to the next kernel of the stream on
  which it was made. ``record_stream`` tells it which other stream has used the memory.

The backward pass needs neither here: autograd runs each operation on the stream of its forward
pass, lets streams wait for each other where a gradient goes from one to the next, and at the end
lets the caller's stream wait for those that the gradients of the parameters were made on (PyTorch,
"CUDA semantics", stream semantics of backward passes).
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, cuda

from schemas.errors import Unsupported

Work = Sequence[Callable[[Tensor], Tensor]]
"""Functions that need nothing of each other."""


def require_cuda() -> None:
    """Raise Unsupported where there is no CUDA device."""
    if not cuda.is_available():
        raise Unsupported("needs CUDA: the streams are queues of a GPU, and this host has none")


def require_on_cuda(x: Tensor) -> None:
    """Raise Unsupported unless ``x`` lies on a CUDA device."""
    if x.device.type != "cuda":
        raise Unsupported(
            f"needs CUDA: the streams are queues of a GPU, and the input is on the {x.device.type}"
        )


def concurrently(work: Work, x: Tensor) -> list[Tensor]:
    """The result of each function for ``x``, each worked out on a stream of its own.

    The streams belong to the process, and serve every call. Raises Unsupported if ``x`` is not on
    a CUDA device.
    """
    require_on_cuda(x)
    current = cuda.current_stream(x.device)
    streams = [_side_stream(x.device, number) for number in range(len(work))]
    for stream in streams:
        stream.wait_stream(current)
    results = _launch(work, x, streams, current)
    for stream in streams:
        current.wait_stream(stream)
    return results


def between_synchronisations(work: Work, x: Tensor) -> list[Tensor]:
    """As :func:`concurrently`, the way the original study did it (its section 3.4).

    Every call takes new streams and, in place of events, lets the host wait twice until the whole
    device is idle. Raises Unsupported if ``x`` is not on a CUDA device.
    """
    require_on_cuda(x)
    streams = [cuda.Stream(x.device) for _ in work]
    cuda.synchronize(x.device)
    # The study did not hand over the memory. It costs no time, and the results depend on it.
    results = _launch(work, x, streams, cuda.current_stream(x.device))
    cuda.synchronize(x.device)
    return results


@cache
def _side_stream(device: torch.device, number: int) -> cuda.Stream:
    return cuda.Stream(device)


def _launch(
    work: Work, x: Tensor, streams: Sequence[cuda.Stream], current: cuda.Stream
) -> list[Tensor]:
    results = []
    for function, stream in zip(work, streams, strict=True):
        with cuda.stream(stream):
            result = function(x)
        x.record_stream(stream)
        result.record_stream(current)
        results.append(result)
    return results
