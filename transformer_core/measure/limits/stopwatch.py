"""The best time of calls on a device."""

import time
from collections.abc import Callable

import torch

_READING_SECONDS = 0.005
"""A reading of the clock is this far from the next one at least, however short a call is."""


class Stopwatch:
    """Times calls between synchronised points of a device."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self.device = device
        self.seconds = seconds

    def best(self, call: Callable[[], object]) -> float:
        """Seconds of one call: the best of as many readings as ``seconds`` allow, at least two.

        The first call warms up and is not counted.
        """
        call()
        once = self._reading(call, 1)
        calls = max(1, round(_READING_SECONDS / once)) if once < _READING_SECONDS else 1
        best, left = once, self.seconds
        while True:
            reading = self._reading(call, calls)
            best = min(best, reading)
            left -= reading * calls
            if left <= 0:
                return best

    def _reading(self, call: Callable[[], object], calls: int) -> float:
        self._synchronise()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        self._synchronise()
        return max(time.perf_counter() - began, 1e-9) / calls

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
