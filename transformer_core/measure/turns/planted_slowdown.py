"""Steps that are slowed down on purpose, by a known share, to test the protocol of comparisons."""

import time
from collections.abc import Callable


class PlantedDelay:
    """Makes every step longer by ``share`` of its own time, with a busy wait on the host.

    The wait begins when the device has done the step's work, so that the share is exact whether
    the host or the device is the slower. A side that is compared with a planted one must wait for
    its device at every step too: give it a share of 0.
    """

    def __init__(
        self,
        share: float,
        synchronise: Callable[[], None],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._share = share
        self._synchronise = synchronise
        self._now = now
        self._began = now()

    def begin(self) -> None:
        """A step begins now, and not where the last one ended."""
        self._began = self._now()

    def step_done(self) -> None:
        """Spend the planted time at the end of a step."""
        self._synchronise()
        done = self._now()
        end = done + self._share * (done - self._began)
        while self._now() < end:
            pass
        self._began = end
