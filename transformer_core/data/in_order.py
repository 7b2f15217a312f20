"""Results of many threads or processes, in the order of their inputs."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_order(
    workers: Executor, function: Callable[[T], R], items: Iterable[T], ahead: int
) -> Iterator[R]:
    """``map(function, items)`` with at most ``ahead`` items taken and not yet given back.

    Unlike ``Executor.map``, which takes all items at once.
    """
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(workers.submit(function, item))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
