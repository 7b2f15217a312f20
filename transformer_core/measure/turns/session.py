"""One session of a comparison: fresh processes of every side, which take turns.

All sides are started at the same time. When all are ready they warm up one after the other, and
then train for a few steps each, A B, A B, ..., after some rounds B A, B A, ..., while the others
wait. Of more than two sides, the first, which is the reference, has its turn in the middle, so that
no other turn is far from its own.
"""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any

from schemas.errors import Unsupported
from schemas.measure import Comparing
from schemas.results import (
    MachineState,
    Probe,
    Provenance,
    Round,
    Session,
    Status,
    TurnWindow,
)
from schemas.results import Side as SideRecord
from schemas.study import RunSpec
from transformer_core.measure.machine_state import cpu_time, machine_state
from transformer_core.measure.outcome import classify, clear_outcomes, read_outcomes
from transformer_core.measure.probe import probe_cpu
from transformer_core.measure.run import how_ended, start_workers
from transformer_core.measure.turns import (
    Desk,
    ProbeDevices,
    Report,
    SideEndedError,
    TellMemory,
    TellProvenance,
    Turn,
)

WORKER = "transformer_core.measure.paired_worker"
DESK = "desk.json"
"""File that tells the processes where the desk is, in the folder of a comparison."""
LEAD_STEPS = 1
"""Steps of a turn before those that are timed: caches and clocks are another side's at first."""

PILOT_STEPS = 3
"""Steps of the turn that tells how long a step takes."""
ROUNDS_IN_A_ROW = 4
"""Rounds in one order before the order is turned round: a steady drift cancels, and seldom has a
side two turns one after the other, the second of which finds its caches warm."""

Enough = Callable[[Sequence[Round], float], bool]
"""Whether a session needs no more than these rounds, at this many seconds since its beginning."""

_LAST_WORDS_SECONDS = 5.0
"""How long a side that ended may take to say why."""
_LEAVE_SECONDS = 1.0
"""How long a side may take to end that is not needed any more. All it has to tell is told."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a name for a run spec."""

    name: str
    file: Path
    spec: RunSpec
    planted: float | None = None
    """Share by which its steps are slowed down; None where nothing is tested, and no step waits
    for its device."""


class SessionEndedError(Exception):
    """A side ended before the session did: with a status, like a run."""

    def __init__(self, side: str, status: Status, reason: str, traceback: str | None) -> None:
        super().__init__(f"{side}: {status}, {reason}")
        self.side = side
        self.status = status
        self.reason = reason
        self.traceback = traceback


@dataclass
class Sessions:
    """Makes sessions of the same sides, the reference first, one after the other.

    What they leave is below ``folder``.
    """

    sides: Sequence[Side]
    comparing: Comparing
    data: Path
    folder: Path
    desk: Desk
    command: str
    started: datetime
    progress: Callable[[str], None]
    provenance: dict[str, Provenance] = field(default_factory=dict)
    """By side, as its processes of the first session told."""

    def run(self, number: int, enough: Enough) -> Session:
        """A whole session; SessionEndedError if a side does not reach its end."""
        started, began = datetime.now(UTC), time.monotonic()
        children = self._start()
        try:
            made = self._in_turns(children, began, enough)
        except SideEndedError as error:
            raise self._why(error, children) from None
        finally:
            self.desk.dismiss()
            stop_sides(children)
        return Session(
            number=number,
            started=started.isoformat(timespec="seconds"),
            seconds=time.monotonic() - began,
            **made,
        )

    def _in_turns(
        self, children: dict[str, subprocess.Popen[bytes]], began: float, enough: Enough
    ) -> dict[str, Any]:
        def check() -> None:
            for name, child in children.items():
                if child.poll() is not None or read_outcomes(self.folder / name):
                    raise SideEndedError(name, "ended before the session was over")

        def ask(side: Side, task: Any) -> list[Any]:
            return self.desk.ask(side.name, task, check, side.spec.machine.timeout)

        self.progress("starting")
        ranks = {side.name: side.spec.world_size for side in self.sides}
        longest = max(side.spec.machine.timeout for side in self.sides)
        seated = self.desk.seat(ranks, check, longest)
        widest = max(self.sides, key=lambda side: side.spec.parts)
        on_gpu = any(topology.device == "cuda" for topology, _ in seated.values())

        def state() -> MachineState:
            probes: list[Probe] = [probe_cpu()]
            if on_gpu:
                probes = [p for of_rank in ask(widest, ProbeDevices()) for p in of_rank]
            return machine_state(probes)

        # Before the first turn: from then on a side may have fewer cores than there are.
        if not self.provenance:
            self.provenance |= {
                side.name: ask(side, TellProvenance(self.command, self.started))[0]
                for side in self.sides
            }
        before = state()
        self.progress("warm-up")
        warm = {
            side.name: _slowest(ask(side, Turn(0, self.comparing.warmup_steps))).seconds
            for side in self.sides
        }
        steps = 1
        for side in self.sides:
            pilot = ask(side, Turn(LEAD_STEPS, PILOT_STEPS))[0]
            if side is self.sides[0]:
                steps = ceil(self.comparing.window_seconds / (pilot.seconds / PILOT_STEPS))
        order = in_order(self.sides)
        before_rounds, rounds_began = cpu_time(), time.monotonic()
        rounds: list[Round] = []
        while not enough(rounds, time.monotonic() - began):
            backwards = len(rounds) // ROUNDS_IN_A_ROW % 2
            windows = []
            for side in order[::-1] if backwards else order:
                at = time.monotonic() - began
                report = _slowest(ask(side, Turn(LEAD_STEPS, steps)))
                windows.append(_window(side, at, steps, report))
            rounds.append(Round(windows=windows))
            self.progress(f"round {len(rounds)}")
        rounds_seconds, after_rounds = time.monotonic() - rounds_began, cpu_time()
        foreign = None
        if before_rounds is not None and after_rounds is not None:
            foreign = before_rounds.foreign_until(after_rounds)
        # Memory first: on a GPU a probe takes some too.
        memory = {side.name: ask(side, TellMemory()) for side in self.sides}
        after = state()
        return {
            "sides": [
                SideRecord(
                    name=side.name,
                    planted=side.planted or 0.0,
                    topology=seated[side.name][0],
                    startup_seconds=seated[side.name][1] - began,
                    warmup_seconds=warm[side.name],
                    peak_memory_bytes=max(
                        (peak for peak in memory[side.name] if peak is not None), default=None
                    ),
                )
                for side in self.sides
            ],
            "rounds": rounds,
            "before": before,
            "after": after,
            "foreign_cpu_seconds": foreign,
            "rounds_seconds": rounds_seconds,
        }

    def _start(self) -> dict[str, subprocess.Popen[bytes]]:
        """Start the processes of all sides; SessionEndedError where this host cannot."""
        children: dict[str, subprocess.Popen[bytes]] = {}
        for place, side in enumerate(self.sides):
            clear_outcomes(self.folder / side.name)
            try:
                children[side.name] = start_side(
                    side, place, self.data, self.folder, self.desk.file
                )
            except Unsupported as error:
                stop_sides(children)
                raise SessionEndedError(side.name, *classify(error), None) from None
        return children

    def _why(
        self, error: SideEndedError, children: dict[str, subprocess.Popen[bytes]]
    ) -> SessionEndedError:
        """How the side ended that does not answer. Ends all others."""
        folder, child = self.folder / error.side, children[error.side]
        end = time.monotonic() + _LAST_WORDS_SECONDS
        while not (outcome := read_outcomes(folder)) and time.monotonic() < end:
            if child.poll() is not None:
                outcome = read_outcomes(folder)
                break
            time.sleep(0.05)
        code = child.poll()
        for other in children.values():
            other.kill()
        if outcome:
            status, reason, traceback = (outcome[key] for key in ("status", "reason", "traceback"))
            return SessionEndedError(error.side, status, reason, traceback)
        how = f" ({how_ended(code)})" if code is not None else ""
        return SessionEndedError(error.side, "failed", f"{error.reason}{how}", None)


def in_order(sides: Sequence[Side]) -> list[Side]:
    """The order of turns: the first of ``sides`` in the middle."""
    reference, *others = sides
    middle = len(others) // 2
    return [*others[:middle], reference, *others[middle:]]


def start_side(
    side: Side, place: int, data: Path, folder: Path, desk: Path
) -> subprocess.Popen[bytes]:
    """Start this host's processes of a side, which come to the desk that the file ``desk`` names,
    and leave below ``folder`` how they ended.

    ``place`` is the number of the side; Unsupported where this host cannot.
    """
    output = folder / side.name
    output.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {
        "spec": side.file,
        "data": data,
        "side": side.name,
        "desk": desk,
        "output": output,
    }
    if side.planted is not None:
        options["planted"] = side.planted
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return start_workers(side.spec, WORKER, words, place)


def stop_sides(children: dict[str, subprocess.Popen[bytes]]) -> None:
    """Wait until all processes have ended, but not long."""
    end = time.monotonic() + _LEAVE_SECONDS
    for child in children.values():
        try:
            child.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _slowest(reports: Sequence[Report]) -> Report:
    """The report of rank 0, with the longest wait for input of any rank."""
    wait = max(report.input_wait_seconds for report in reports)
    return replace(reports[0], input_wait_seconds=wait)


def _window(side: Side, began: float, steps: int, report: Report) -> TurnWindow:
    return TurnWindow(
        side=side.name,
        began=began,
        seconds=report.seconds,
        steps=steps,
        tokens=report.tokens,
        padded_tokens=report.padded_tokens,
        input_wait_seconds=report.input_wait_seconds,
    )
