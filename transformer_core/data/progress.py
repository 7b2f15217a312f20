"""Progress of long work: a bar on a terminal, a log line now and then elsewhere."""

import logging
import sys
import time
from types import TracebackType
from typing import Self

from tqdm import tqdm

LOG = logging.getLogger(__name__)


class Progress:
    """Counts ``unit``s of ``what``; use it as a context manager and call :meth:`update`."""

    def __init__(
        self, what: str, unit: str, total: int | None = None, seconds: float = 10.0
    ) -> None:
        self._what, self._unit, self._total, self._seconds = what, unit, total, seconds
        self._count = 0
        self._next = time.monotonic() + seconds
        self._bar = tqdm(
            total=total,
            desc=what,
            unit=f" {unit}",
            unit_scale=True,
            disable=not sys.stderr.isatty(),
        )

    def update(self, count: int) -> None:
        """Add ``count`` units."""
        self._count += count
        self._bar.update(count)
        if self._bar.disable and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._seconds
            share = f" of {self._total:,}" if self._total else ""
            LOG.info("%s: %s%s %s", self._what, f"{self._count:,}", share, self._unit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
