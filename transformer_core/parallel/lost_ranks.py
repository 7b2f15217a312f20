"""Finds out which ranks of a run still answer, and reports lost ones.

In every process a thread answers through torchrun's key-value store, whatever the main thread waits
for. A process that misses its peers calls the roll and names the silent ones.
"""

import contextlib
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist

from schemas.errors import PeerLost
from schemas.results import RankPlace

PERIOD = 0.5  # seconds between two reads of the store, each of which takes some 0.1 ms
PATIENCE = 3.0  # seconds that a rank has for its answer
MARGIN = 30.0  # seconds by which our deadline precedes that of a process group

_MESSAGES = ("gloo", "NCCL", "onnection closed", "onnection reset", "onnection refused")


class RollCall:
    """The roll of a run, as one of its processes sees it."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        places: Sequence[RankPlace],
        deadline: float | None = None,
    ) -> None:
        self.store = store
        self.rank = rank
        self.places = places
        self.deadline = deadline
        self._answered = 0
        self._steps = 0
        self._last = time.monotonic()
        self.closed = False
        self._signals, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        # When a process dies, torchrun ends the others of its host by SIGTERM. The main thread may
        # be waiting for the dead one, so the thread of this object handles the signal.
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        self._thread = threading.Thread(target=self._serve, name="roll call", daemon=True)
        self._thread.start()

    def progress(self) -> None:
        """Records progress of the main thread; after ``deadline`` seconds without it, the process
        ends."""
        self._steps += 1
        self._last = time.monotonic()

    def rest(self) -> None:
        """Stops counting seconds until the next progress: the main thread waits for a task, or computes
        without its peers."""
        self._last = float("inf")

    def explain(self, error: Exception) -> PeerLost | None:
        self._leave()
        return self.lost() if _is_about_peers(error) else None

    def lost(self) -> PeerLost | None:
        """Calls the roll and waits :data:`PATIENCE` seconds. Returns an error that names the peers
        that neither answer nor have ended themselves; None if there are none."""
        try:
            return self._call()
        except RuntimeError:
            # The store runs on the first host, so that is lost.
            first = _name(self.places[0])
            return PeerLost(f"{first} does not answer, and neither does any other rank on its host")

    def close(self) -> None:
        """From here on, nothing ends the process: the thread has stopped."""
        self.closed = True
        os.write(self._wakeup, b"\0")
        self._thread.join(PATIENCE)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _call(self) -> PeerLost | None:
        number = self.store.add("calls", 1)
        waiting = {place.rank for place in self.places} - {self.rank}
        steps = {self.rank: self._steps}
        end = time.monotonic() + PATIENCE
        while waiting and time.monotonic() < end:
            for rank in [*waiting]:
                if self.store.check([key := f"present/{number}/{rank}"]):
                    steps[rank] = int(self.store.get(key))
                if rank in steps or self.store.check([f"ended/{rank}"]):
                    waiting.remove(rank)
            self._answer()
            time.sleep(0.05)
        if waiting:
            names = [_name(self.places[rank]) for rank in sorted(waiting)]
            return PeerLost(f"{', '.join(names)} {'do' if names[1:] else 'does'} not answer")
        last = min(steps, key=lambda rank: steps[rank])
        if steps[last] == max(steps.values()):
            return None
        return PeerLost(f"{_name(self.places[last])} makes no progress and is behind the others")

    def _serve(self) -> None:
        answers, asked = True, select.poll()  # select.select takes no more than 1,024 open files
        asked.register(self._signals, select.POLLIN)
        while not self.closed:
            if answers:
                try:
                    self._answer()
                except RuntimeError:
                    # The run is over, or its first host is lost: the main thread may notice. This one
                    # still ends the process when asked, or after the deadline.
                    answers = False
            readable = asked.poll(1000 * PERIOD)
            if self.closed:
                return
            if readable and signal.SIGTERM in os.read(self._signals, 64):
                self._end(self.lost(), 128 + signal.SIGTERM)
            if self.deadline is not None and time.monotonic() - self._last > self.deadline:
                found = self.lost() or "all ranks answer"
                self._end(PeerLost(f"no step for {self.deadline:g} s: {found}"), 1)

    def _answer(self) -> None:
        calls = self.store.add("calls", 0)
        for number in range(self._answered + 1, calls + 1):
            self.store.set(f"present/{number}/{self.rank}", str(self._steps))
        self._answered = calls

    def _end(self, lost: PeerLost | None, code: int) -> None:
        if lost is not None:
            report(lost)
        self._leave()
        os._exit(code)

    def _leave(self) -> None:
        with contextlib.suppress(RuntimeError):  # lost() reports it
            self.store.set(f"ended/{self.rank}", "")


current: RollCall | None = None  # the roll of this process, once it has joined a run
report: Callable[[PeerLost], None] = lambda lost: print(lost, file=sys.stderr, flush=True)  # noqa: E731
"""Called with the lost peers when the process ends without raising an exception."""


def explain(error: Exception) -> Exception:
    """Returns the loss of a peer that caused ``error``, or ``error`` itself. Call this when the
    process is about to end."""
    lost = None
    if current is not None:
        lost = current.explain(error)
    elif "TORCHELASTIC_RUN_ID" in os.environ and _is_about_peers(error):
        # Before the first roll call, or in work that has none. NCCL gives the cause last, gloo advice:
        last = re.search(r"Last error:\n(.+)", str(error))
        said = (last[1] if last else str(error)).partition("\n")[0].partition(". ")[0]
        lost = PeerLost(f"ranks cannot reach one another: {said}")
    if lost is None:
        return error
    lost.__cause__ = error
    return lost


def begin(rank: int, places: Sequence[RankPlace], deadline: float | None) -> RollCall | None:
    """Starts the roll call of a process that torchrun started; returns None in others.

    Must be called on the main thread. After ``deadline`` seconds without :meth:`RollCall.progress`
    the process ends; None means never. A process that trains several times, as for a certificate, has
    one roll call until its end: an earlier one would count no more progress, and end the process.
    """
    global current
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    if current is not None and not current.closed:
        current.progress()
        return current
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(
        address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30)
    )
    # torchrun --max-restarts keeps the store, with what was told before a restart.
    own = dist.PrefixStore(f"roll_call/{os.environ.get('TORCHELASTIC_RESTART_COUNT')}", store)
    current = RollCall(own, rank, places, deadline)
    return current


def _is_about_peers(error: Exception) -> bool:
    """Whether ``error`` only says that a peer is lost or silent, not the cause."""
    return isinstance(error, RuntimeError) and (
        isinstance(error, dist.DistError) or any(words in str(error) for words in _MESSAGES)
    )


def _name(place: RankPlace) -> str:
    return f"rank {place.rank} on host {place.host}"
