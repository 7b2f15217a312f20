"""One session of a comparison: fresh processes of every side, which take turns.

All sides start at the same time. When all are ready, they warm up one after the other. Then each
trains for a few steps while the others wait: A B, A B, ..., after some rounds B A, B A, ... In a
round all train on the same batches; each session has different ones.

All ratios share the deviation of the first side, the reference. So with many other sides, on a CPU,
it runs in several processes spread evenly over the round, and every ratio is their mean. The most
efficient number of processes is the square root of the number of others (Dunnett, A multiple
comparison procedure for comparing several treatments with a control, 1955).
"""

import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import ceil, lcm, sqrt
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Self

from schemas.config.measurement import Comparing
from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported
from schemas.results import MachineState, Probe, Provenance, Round, Session, Topology, TurnWindow
from schemas.results import Side as SideRecord
from transformer_core.machine.machine_state import CpuTime, cpu_time, probe_cpu
from transformer_core.measure.memory_fit import DoesNotFit, Keeping, keeping_here
from transformer_core.measure.session_ratio import session_ratios
from transformer_core.parallel import nvml
from transformer_core.parallel.nvml import require_shared_gpus
from transformer_core.run.coordinator import (
    COORDINATOR,
    Coordinator,
    ProbeDevices,
    Report,
    SideEndedError,
    TellKernels,
    TellMemory,
    TellProvenance,
    Turn,
)
from transformer_core.run.gpu_leases import gpus_of
from transformer_core.run.launcher import spans_machines, uses_gpus
from transformer_core.run.oom import kernel_kills
from transformer_core.run.order import TrainingOrder
from transformer_core.run.statuses import AGAIN, Outcome, clear_outcomes, read_outcomes
from transformer_core.run.supervisor import (
    CANNOT_START,
    Child,
    check_start,
    explained,
    how_ended,
    start_workers,
)

PILOT_STEPS = 3
"""Largest number of last warm-up steps that determine the time of a step."""

ROUNDS_IN_A_ROW = 4
"""Rounds in one order before it is reversed: a steady drift cancels, and a side rarely has two turns
in a row, the second with warm caches."""


def backwards(session: int, rounds: int) -> bool:
    """Whether the sides take turns in reverse order after so many ``rounds`` of a session. Sessions
    begin in either order in turn: in a number of rounds that is no multiple of eight, a drift that all
    of them have does not cancel."""
    return bool((session - 1 + rounds // ROUNDS_IN_A_ROW) % 2)


Enough = Callable[[Sequence[Round], float], bool]
"""Whether these rounds are enough for a session, given the seconds since its start."""


class TurnsOrder(TrainingOrder):
    """Order to train whenever it is this side's turn."""

    work = "transformer_core.measure.turns_worker"

    side: str
    """Its name in the comparison."""
    coordinator: Path
    """File with the address of the coordinator, which assigns the turns."""
    planted: float | None = None
    """Fraction by which a self-test slows its steps; null outside self-tests."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a name for a run spec."""

    name: str
    spec: RunSpec
    planted: float | None = None
    """Fraction by which a self-test slows its steps; None outside self-tests, where steps do not
    wait for the device."""
    order: type[TurnsOrder] = TurnsOrder
    """The order that its processes receive."""
    place: int | None = None
    """Its number among all sides of a job, the same on every host, where it distinguishes ports; by
    default, its number in its sessions."""


Ask = Callable[[Side, Any], list[Any]]
"""Gives a side a task and returns the answer of each of its ranks."""

Members = dict[str, tuple[Topology, float]]
"""The topology of each side, and when its last rank was ready."""

COPY = "+"
"""Separates the name of the reference from the number of a further process. Names of sides never
contain it."""

_LAST_WORDS_SECONDS = 5.0
"""Seconds to wait for the reason of a side that has ended."""


class SessionEndedError(Exception):
    """A side ended before the session was over; like a run, it has a status."""

    def __init__(self, side: str, outcome: Outcome) -> None:
        super().__init__(f"{side}: {outcome.status}, {outcome.reason}")
        self.side = side
        self.outcome = outcome


@dataclass
class Sessions:
    """Runs sessions of the same sides, the reference first, one after the other.

    Their files are below ``folder``.
    """

    sides: Sequence[Side]
    comparing: Comparing
    data: Path
    folder: Path
    coordinator: Coordinator
    command: str
    started: datetime
    progress: Callable[[str], None]
    provenance: dict[str, Provenance] = field(default_factory=dict)
    """By side, as reported by its processes in the first session."""
    keeps: Keeping | None = None
    """The memory that sides keep on GPUs between their turns; None before the first session."""
    copies: bool = True
    """Whether the reference may run in several processes."""
    _children: dict[str, Child] = field(default_factory=dict)
    """The processes of the current session, by side."""

    @classmethod
    @contextmanager
    def opened(
        cls,
        sides: Sequence[Side],
        comparing: Comparing,
        data: Path,
        folder: Path,
        command: str,
        progress: Callable[[str], None],
    ) -> Iterator[Self]:
        """Sessions of these sides, with a coordinator for them."""
        several_hosts = any(spans_machines(side.spec) for side in sides)
        sides = [replace(s, place=n) if s.place is None else s for n, s in enumerate(sides)]
        with Coordinator(folder / COORDINATOR, several_hosts) as coordinator:
            started = datetime.now(UTC)
            yield cls(sides, comparing, data, folder, coordinator, command, started, progress)

    @property
    def players(self) -> list[Side]:
        """The sides in the order of their turns, with all processes of the reference."""
        reference, *others = self.sides
        alone = not self.copies or spans_machines(reference.spec) or uses_gpus(reference.spec)
        count = 1 if alone else max(1, round(sqrt(len(others))))
        copies = [replace(reference, name=f"{reference.name}{COPY}{n + 1}") for n in range(count)]
        order = list[Side]()
        for place, copy in enumerate([reference, *copies[1:]]):
            before = len(others) * (2 * place + 1) // (2 * count)
            order += [*others[len(order) - place : before], copy]
        return [*order, *others[len(order) - count :]]

    def run(self, number: int, enough: Enough) -> Session:
        """Runs a whole session; SessionEndedError if a side ends before it is over."""
        started, began = datetime.now(UTC), time.monotonic()
        with self.gathered(number) as (ask, topologies):
            made = self._in_turns(ask, topologies, began, enough, number)
        return Session(
            number=number,
            started=started.isoformat(timespec="seconds"),
            seconds=time.monotonic() - began,
            **made,
        )

    @contextmanager
    def gathered(self, number: int = 1) -> Iterator[tuple[Ask, Members]]:
        """Starts fresh processes of all sides for session ``number``, which wait for tasks and end with
        the block. SessionEndedError if a side ends earlier."""
        kills = kernel_kills()
        children = self._start(number)

        def check() -> None:
            for name, child in children.items():
                if child.poll() is not None or read_outcomes(self.folder / name):
                    raise SideEndedError(name, "ended before the session was over")

        def ask(side: Side, task: Any) -> list[Any]:
            return self.coordinator.ask(side.name, task, check, side.spec.machine.timeout)

        try:
            self.progress("starting")
            ranks = {side.name: side.spec.world_size for side in self.players}
            longest = max(side.spec.machine.timeout for side in self.sides)
            yield ask, self.coordinator.gather(ranks, check, longest)
        except SideEndedError as error:
            raise self._why(error, kills) from None
        finally:
            self.coordinator.dismiss()
            end = time.monotonic() + _LEAVE_SECONDS
            for child in children.values():
                try:
                    child.wait(max(0.0, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()

    def _in_turns(
        self, ask: Ask, members: Members, began: float, enough: Enough, number: int
    ) -> dict[str, Any]:
        """Runs the turns; returns the session's fields about them."""
        on_gpu = any(topology.device == "cuda" for topology, _ in members.values())
        # Before the first turn: afterwards a side may be bound to some of the cores.
        if not self.provenance:
            self.provenance |= self.provenances(ask)
        before = self._state(ask, on_gpu)
        warm, steps = self._warm_up(ask)
        made = self._rounds(ask, began, steps, enough, on_gpu, number)
        # Before the last probes, which take memory on a GPU, too.
        records = [
            _record(ask, side, members[side.name], began, warm[side.name]) for side in self.sides
        ]
        after = self._state(ask, on_gpu)
        ratios = session_ratios(made["rounds"], [side.name for side in self.sides])
        return {"sides": records, **made, "ratios": ratios, "before": before, "after": after}

    def provenances(self, ask: Ask) -> dict[str, Provenance]:
        """The provenance of each side's numbers."""
        task = TellProvenance(self.command, self.started)
        with ThreadPoolExecutor() as pool:
            found = pool.map(lambda side: ask(side, task)[0], self.sides)
            return {side.name: one for side, one in zip(self.sides, found, strict=True)}

    def _state(self, ask: Ask, on_gpu: bool) -> MachineState:
        """The state of the machine, with the speed of its devices."""
        probes: list[Probe] = [probe_cpu()]
        if on_gpu:
            widest = max(self.sides, key=lambda side: side.spec.parts)
            probes = [p for of_rank in ask(widest, ProbeDevices()) for p in of_rank]
        return MachineState(probes=probes, gpus=nvml.states())

    def _warm_up(self, ask: Ask) -> tuple[dict[str, float], int]:
        """Warms up all sides; returns the seconds of each, and the number of steps in a turn: as
        many as the first side needs for a window, rounded up for replicas that train apart."""
        self.progress("warm-up")
        first, others = self.sides[0], [one for one in self.players if one is not self.sides[0]]
        # The same number for each side, so that in a round all train on the same batches.
        count = max(2, self.comparing.warmup_steps)
        last = min(PILOT_STEPS, count // 2)
        begun = _slowest(ask(first, Turn(0, count - last)))
        pilot = _slowest(ask(first, Turn(0, last)))
        warm = {first.name: begun.seconds + pilot.seconds}
        warm |= {side.name: _slowest(ask(side, Turn(0, count))).seconds for side in others}
        steps = ceil(self.comparing.window_seconds / (pilot.seconds / last))
        # Replicas that train apart meet equally often in all windows.
        period = lcm(*(getattr(side.spec.parallel, "every", 1) for side in self.sides))
        return warm, period * ceil(max(steps, self.comparing.window_steps) / period)

    def _rounds(
        self, ask: Ask, began: float, steps: int, enough: Enough, on_gpu: bool, number: int
    ) -> dict[str, Any]:
        """Runs all rounds; measures the CPU time of other processes meanwhile, and the work of GPUs
        in each round."""
        order = self.players
        turn = Turn(self.comparing.lead_steps, steps, self.comparing.lead_batch)
        before, rounds_began = self._cpu_time(), time.monotonic()
        rounds: list[Round] = []
        while not enough(rounds, time.monotonic() - began):
            gpus = nvml.counters() if on_gpu else {}
            windows = []
            for side in order[::-1] if backwards(number, len(rounds)) else order:
                at = time.monotonic() - began
                report = _slowest(ask(side, turn))
                windows.append(TurnWindow(side=side.name, began=at, steps=steps, **vars(report)))
            rounds.append(Round(windows=_of_copies(windows), gpus=nvml.work_since(gpus)))
            self.progress(f"round {len(rounds)}")
        rounds_seconds, after = time.monotonic() - rounds_began, self._cpu_time()
        foreign = before.foreign_until(after) if before and after else None
        return {"rounds": rounds, "foreign_cpu_seconds": foreign, "rounds_seconds": rounds_seconds}

    def _cpu_time(self) -> CpuTime | None:
        """CPU seconds so far, including sides forked by a server of an earlier job."""
        return cpu_time(child.pid for child in self._children.values() if child.pid is not None)

    def _start(self, number: int) -> dict[str, Child]:
        """Starts the processes of all sides; SessionEndedError if this host cannot."""
        if self.keeps is None:
            self.keeps = self._keeping()
        self.coordinator.announce({"session": number, "keeps": self.keeps})
        self._children = {}
        try:
            # Before any side starts: one that waited for a session that never began would take turns
            # in the next.
            for side in self.players:
                clear_outcomes(self.folder / side.name)
                check_start(side.spec, side.order.worker)
            for side in self.players:
                self._children[side.name] = start_side(side, self.data, self.folder, self.command)
        except CANNOT_START as error:
            for other in self._children.values():
                other.kill()
            raise SessionEndedError(without_copy(side.name), Outcome.of(error)) from None
        return self._children

    def _keeping(self) -> Keeping:
        """Decides what sides keep on GPUs between turns; SessionEndedError if they cannot share
        them."""
        specs = {side.name: side.spec for side in self.sides}
        try:
            if any(map(uses_gpus, specs.values())):
                used = {uuid for spec in specs.values() for uuid in gpus_of(spec)}
                require_shared_gpus(len(specs), used)
            return keeping_here(specs, self.data, self.folder)
        except Unsupported as error:
            raise SessionEndedError(self.sides[0].name, Outcome.of(error)) from None
        except DoesNotFit as error:
            raise SessionEndedError(error.side, Outcome(status="oom", reason=str(error))) from None

    def _why(self, error: SideEndedError, kills: int) -> SessionEndedError:
        """Finds out how a side ended, and ends all others; ``kills`` is the kernel's count of ended
        processes from before the session."""
        folder, child = self.folder / error.side, self._children[error.side]
        end = time.monotonic() + _LAST_WORDS_SECONDS
        while child.poll() is None and time.monotonic() < end:
            outcome = read_outcomes(folder)
            if outcome is not None and not outcome.about_peers:
                break
            time.sleep(0.05)
        code, outcome = child.poll(), read_outcomes(folder)
        if code is not None or outcome is not None:  # nobody has killed a side that only stalls
            outcome = explained(outcome, code or 0, kills)
        for other in self._children.values():
            other.kill()
        how = f" ({how_ended(code)})" if code is not None else ""
        unsaid = Outcome(status="failed", reason=f"{error.reason}{how}. {AGAIN}", again=True)
        return SessionEndedError(without_copy(error.side), outcome or unsaid)


def _slowest(reports: Sequence[Report]) -> Report:
    """The report of rank 0, with the longest wait for input of any rank."""
    wait = max(report.input_wait_seconds for report in reports)
    return replace(reports[0], input_wait_seconds=wait)


def without_copy(name: str) -> str:
    """The side's name for the ``name`` of one of its processes."""
    return name.partition(COPY)[0]


def _of_copies(windows: Sequence[TurnWindow]) -> list[TurnWindow]:
    """One window per side: that of the reference has the times of all its processes, which trained on
    the same batches."""
    times = defaultdict[str, list[float]](list)
    for window in windows:
        times[without_copy(window.side)].append(window.seconds)
    merged = {
        side: {"seconds": geometric_mean(seconds), "of_processes": seconds}
        for side, seconds in times.items()
        if len(seconds) > 1
    }
    return [
        window.model_copy(update=merged.get(window.side))
        for window in windows
        if COPY not in window.side
    ]


def _record(
    ask: Ask, side: Side, members: tuple[Topology, float], began: float, warmup_seconds: float
) -> SideRecord:
    """The record of a side in its session."""
    topology, ready = members
    peaks = [peak for peak in ask(side, TellMemory()) if peak is not None]
    return SideRecord(
        name=side.name,
        planted=side.planted or 0.0,
        topology=topology,
        startup_seconds=ready - began,
        warmup_seconds=warmup_seconds,
        peak_memory_bytes=max(peaks, default=None),
        kernels=ask(side, TellKernels())[0],
    )


_LEAVE_SECONDS = 1.0
"""Seconds for a side to end by itself; it has already reported everything."""


def for_devices(comparing: Comparing, specs: Sequence[RunSpec]) -> Comparing:
    """``comparing``, raised to the minimum settings for GPUs if any of ``specs`` uses them here."""
    return comparing.on_gpus() if any(map(uses_gpus, specs)) else comparing


def start_side(side: Side, data: Path, folder: Path, command: str) -> Child:
    """Starts this host's processes of a side. They connect to the coordinator of ``folder``, and record
    below it how they ended. Raises what :func:`start_workers` does."""
    order = side.order(
        spec=side.spec,
        data=data,
        output=folder / side.name,
        command=command,
        side=side.name,
        coordinator=folder / COORDINATOR,
        planted=side.planted,
    )
    return start_workers(order, side.place or 0)
