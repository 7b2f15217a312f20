"""What a reader leaves out of a trace, counted by reason, so that nothing vanishes in silence."""

from collections import Counter
from collections.abc import Sequence


class LeftOut:
    """Events that cannot be used."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, reason: str, count: int = 1, first: str = "") -> None:
        """``count`` events for one reason, and what is wrong with the first of them."""
        if count:
            self._counts[reason] += count
            self._first.setdefault(reason, first)

    def unread(self, category: str, events: Sequence[object]) -> None:
        """Events of an accelerator whose trace has other events than a GPU's."""
        reason = f"an accelerator's of a kind that is not read ({category}), missing in all numbers"
        self.add(reason, len(events))

    @property
    def total(self) -> int:
        """Events left out in all."""
        return self._counts.total()

    @property
    def told(self) -> str:
        """The sentences as the end of another; empty if nothing was left out."""
        return f" ({'; '.join(self.notes())})" if self.total else ""

    def notes(self) -> list[str]:
        """A sentence for each reason."""
        return [
            f"{count:,} {'event was' if count == 1 else 'events were'} left out: {reason}"
            + (f" ({first})" if (first := self._first[reason]) else "")
            for reason, count in self._counts.items()
        ]
