"""How many bytes of gradients, weights and activations every rank sends and receives."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any


class Traffic:
    """Messages of one process, by operation, as counted since it started.

    Bytes are those of the scheme itself. A backend may take a detour (a tree for a broadcast, say),
    which moves bytes from one rank to another.
    """

    def __init__(self) -> None:
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])

    def add(self, operation: str, sent: int = 0, received: int = 0, calls: int = 1) -> None:
        """Count ``calls`` of an operation, with the bytes that they sent and received in all."""
        entry = self._counts[operation]
        for index, value in enumerate((calls, sent, received)):
            entry[index] += value

    def add_all_reduce(self, payload: int, world_size: int, calls: int = 1) -> None:
        """Count all-reduces of ``payload`` bytes in all.

        The backend does not tell its algorithm: what counts is the least that every rank must send
        and receive, 2 (p - 1) / p of the payload (Patarasuk and Yuan, 2009), as in a ring.
        """
        least = 2 * (world_size - 1) * payload // world_size
        self.add("all_reduce", least, least, calls)

    def of_all_ranks(
        self, gather: Callable[[Sequence[float]], list[list[float]]]
    ) -> dict[str, dict[str, Any]]:
        """Operations in alphabetical order: calls, and bytes sent and received by each rank.

        Called on every rank, all of which must have counted the same operations.
        """
        names = sorted(self._counts)
        everyone = gather([value for name in names for value in self._counts[name]])
        result = {}
        for index, name in enumerate(names):
            calls, sent, received = zip(
                *(map(int, values[3 * index : 3 * index + 3]) for values in everyone), strict=True
            )
            result[name] = {
                "calls": max(calls),
                "sent_bytes": list(sent),
                "received_bytes": list(received),
            }
        return result
