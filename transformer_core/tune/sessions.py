"""Measures sides in a session: certificates of the first steps, then times in turns. Estimates the time
of a session from earlier ones, to keep a whole command within its time.

The outcome is one JSON file. A session whose file exists is not run again, so an interrupted study
continues where it stopped.
"""

import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from math import ceil, inf, log
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from transformer_core.common.files import write_text
from transformer_core.parallel import nvml
from transformer_core.tune.answer import LEFT_OUT
from transformer_core.tune.causes import Held, explained, other_batches, other_parts, varied
from transformer_core.tune.certificate import agrees_at_first, certify
from transformer_core.tune.coordinator import (
    SHOWN,
    TOO_LATE,
    Program,
    Say,
    Session,
    Side,
    SideEnded,
    session,
)
from transformer_core.tune.order import BEGAN
from transformer_core.tune.records import Record
from transformer_core.tune.techniques import TECHNIQUES
from transformer_core.tune.techniques.technique import NOISE, Rounding

OWN, AGAIN = "own", "again"
"""The unchanged script, and a copy of it with weights disturbed by float32 rounding. They are equally
fast, so their ratio shows the noise of the comparison."""
TURN_SECONDS = 0.15  # minimum length of a turn in seconds
LEAST_ROUNDS, MOST_ROUNDS = 3, 20
OOM = "oom"  # status of a side for which memory was too short
HIDDEN = (
    "only rounding to 16 bits explains the differences, but compiled or scripted code, extensions or own "
    "autograd functions hide whether they compute in 16 bits: no verdict is possible"
)
COARSE: tuple[Rounding, ...] = ("tf32", "bfloat16", "float8")
"""Formats so coarse that a single rounded number may decide a gradient."""
MORE_COPIES = 2
"""Further disturbed copies that measure such a format if one is not enough."""
UNMEASURED = "how far rounding goes is unknown, and no verdict is possible"
TWO_RUNS = "two runs of the script itself differ, too: no verdict is possible"
ROUNDS_SECONDS = 8.0  # seconds for all rounds of a session, if the steps are short enough
REPORT_SECONDS = 10.0  # least time reserved for writing the report


@dataclass
class Measured:
    """One side in one session."""

    status: str = "ok"  # ok, oom, unsupported (with the reason), left out, or failed
    reason: str = ""
    seconds: list[float] = field(default_factory=list)  # seconds of each round
    certificate: dict[str, Any] | None = None
    memory: dict[str, int] | None = None  # bytes: the peak of its steps, and its known parts
    optimizers: int | None = None  # whose steps take turns
    tensors: int | None = None  # that they update


@dataclass
class Outcome:
    """The results of a session: its sides by name, and the steps of a turn."""

    seed: int
    turn: int = 0
    sides: dict[str, Measured] = field(default_factory=dict)
    ended_early: bool = False  # whether the script reached its end before all rounds were done
    took: float = 0.0  # seconds of the whole session

    @property
    def short_of_memory(self) -> bool:
        """Whether memory ran out for the script or one of its floors, so that no side counts."""
        return self.sides[OWN].status == OOM

    def log_ratios(self, name: str) -> list[float]:
        """Logarithms of the ratio of a side's speed to that of the script, one for each round."""
        own = self.sides[OWN].seconds
        return [log(a / b) for a, b in zip(own, self.sides[name].seconds, strict=False)]


@dataclass(frozen=True)
class Plan:
    name: str  # name of its file
    sides: Sequence[Side]
    seed: int
    rounds: int
    record: int = 6  # steps that certificates compare
    dropout: bool = True
    late: int = 0  # steps to compare again after the last round


@dataclass
class Budget:
    """The seconds to spend, and the cost of sessions."""

    seconds: float
    began: float = field(default_factory=time.monotonic)
    start: float = 5.0  # seconds until two copies of the script have reached their first step
    server: float = 0.0  # seconds to import torch in a new process
    record: float = 1.0  # seconds that a copy takes for the steps that certificates compare
    step: float = 1.0  # seconds of a step
    report: float = REPORT_SECONDS  # seconds reserved for writing the report
    _estimated: float = 0.0
    _took: float = 0.0

    def __post_init__(self) -> None:
        if BEGAN in os.environ:
            gone, start = (max(0.0, time.time() - float(t)) for t in os.environ[BEGAN].split())
            self.began -= gone
            self.report = max(self.report, start)  # On a busy machine both take equally long.

    @property
    def gone(self) -> float:
        """Seconds since the command was started."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds that sessions may still take."""
        return self.seconds - self.report - self.gone

    def cost(self, sides: int, steps: int, imports: bool = False) -> float:
        """Seconds of a session of ``sides`` copies that take ``steps`` steps each, corrected by how far
        earlier sessions exceeded their estimates. It ``imports`` torch if a copy needs a new process."""
        return self.pace * self._expected(sides, steps, imports)

    @property
    def pace(self) -> float:
        """How many times as long as estimated sessions have taken so far."""
        return self._took / self._estimated if self._took else 1.0

    def learn(self, sides: int, steps: int, took: float, imports: bool = False) -> None:
        """Remember that a session took ``took`` seconds."""
        self._estimated += self._expected(sides, steps, imports)
        self._took += took

    def _expected(self, sides: int, steps: int, imports: bool) -> float:
        cores = max(2, len(os.sched_getaffinity(0)))
        start = self.server * imports + self.start * max(1.0, sides / cores)
        return start + sides * (self.record + steps * self.step)


@dataclass
class Sessions:
    """Runs sessions of one program, and stores their outcomes in ``folder``."""

    program: Program
    folder: Path
    key: str  # identifies the program: outcomes with another key are not used
    facts: dict[str, Any] = field(default_factory=dict)
    step_seconds: float = 1.0
    steps: int | None = None  # steps after which the script ends, once a session has seen its end
    deadline: float = inf
    """By ``time.monotonic``; after this time, changes that are not ready are left out, and sessions have
    the minimum number of rounds."""
    repeats: bool = True  # whether two runs of the script itself are the same training
    later: float = 0.0  # seconds before it after which slow changes that are not ready are left out
    failed: dict[str, SideEnded] = field(default_factory=dict)
    """The sides of the last session that ended early, by name."""
    certified: Callable[[str, dict[str, Any]], None] = lambda name, certificate: None
    """Called with each side's certificate as soon as it is known."""

    def run(self, plan: Plan, progress: Say) -> Outcome:
        """The outcome of a session, from its file if it exists. If there is too little memory for it, all sides
        are ``oom``. Raises SideEnded if the unchanged script fails otherwise."""
        # An earlier command may have had time for more or fewer rounds and recorded steps.
        identity = repr((self.key, replace(plan, rounds=0, record=0))).encode()
        file = self.folder / f"{plan.name}.json"
        digest = hashlib.sha256(identity).hexdigest()
        if file.exists():
            kept = json.loads(file.read_text(encoding="utf-8"))
            if kept["digest"] == digest:
                return TypeAdapter(Outcome).validate_python(kept["outcome"])
        began = time.monotonic()
        try:
            found = self._whole(plan, progress)
        except SideEnded as error:
            if not error.out_of_memory:
                raise
            return _short_of_memory(plan, error)
        found.took = time.monotonic() - began
        whole = self._certify_again(plan, found, progress)
        if whole and not any(side.status == LEFT_OUT for side in found.sides.values()):
            text = json.dumps({"digest": digest, "outcome": asdict(found)}, indent=1)
            write_text(file, text + "\n")
        return found

    def _certify_again(self, plan: Plan, found: Outcome, progress: Say) -> bool:
        """Judges changes by more disturbed copies if rounding to 16 bits does not explain them. In a small model,
        one number that falls on the other side of a kink may move a gradient by tens of percent, and one
        copy may not show it. False if there was no time for that."""
        doubted = [
            (side, certificate)
            for side in plan.sides
            if side.name in found.sides
            and (certificate := found.sides[side.name].certificate)
            and certificate["word"] == "different"
            and certificate["format"] in COARSE
            and certificate["floor"]
        ]
        if not doubted:
            return True
        if time.monotonic() + found.took > self.deadline:
            for _, certificate in doubted:
                certificate["reason"] += "; there was no time to measure rounding once more"
            return False
        same = [side for side in plan.sides if side.name == OWN or side.noise]
        more = [
            replace(side, name=f"{side.name}_{draw}", draw=draw)
            for side in same
            if side.name in map(floor_name, COARSE)
            for draw in range(1, MORE_COPIES + 1)
        ]
        # Steps after the last round are the same ones only if there are as many rounds.
        rounds = plan.rounds if plan.late else 0
        again = replace(
            plan,
            name=f"{plan.name}-copies",
            sides=[*same, *more, *(side for side, _ in doubted)],
            rounds=rounds,
        )
        failed = self.failed
        try:
            judged = self._run(again, lambda text: progress(f"measuring rounding again: {text}"))
        except SideEnded as error:
            for _, certificate in doubted:
                certificate["reason"] += f"; rounding could not be measured once more ({error})"
            return True
        finally:
            self.failed = failed
        for side, _ in doubted:
            if again_judged := judged.sides[side.name].certificate:
                found.sides[side.name].certificate = again_judged
        return True

    def _whole(self, plan: Plan, progress: Say) -> Outcome:
        """The outcome of a session, repeated with shorter turns if the script ended early."""
        for _ in range(2):
            try:
                found = self._run(plan, progress)
            except SideEnded as error:
                steps = error.said.get("step", 0)
                if error.why or self._turn(plan, steps) == 0:
                    raise
                self.steps = steps
                continue
            if not found.ended_early or self._turn(plan, self.steps) == found.turn:
                return found
        return self._run(plan, progress)

    def _turn(self, plan: Plan, steps: int | None) -> int:
        """Steps of a turn: a multiple of the optimizers' cycle, such that all turns fit into
        ``steps``; 0 if they do not fit."""
        cycle = self.facts.get("cycle", 1)
        turn = max(1, ceil(TURN_SECONDS / self.step_seconds), min(2, plan.rounds))
        if steps is not None:
            turn = min(turn, (steps - plan.record - plan.late - 1) // (plan.rounds + 1))
        return -(-turn // cycle) * cycle if steps is None else turn // cycle * cycle

    def timed_steps(self, plan: Plan) -> int:
        """Steps of a side after its recorded first steps."""
        return (plan.rounds + 1) * max(1, self._turn(plan, self.steps)) + plan.late

    def rounds(self, sides: int, least: int, record: int, seconds: float = ROUNDS_SECONDS) -> int:
        """Number of rounds for a session of so many sides: as many as the seconds for all rounds allow, so
        that a disturbed round matters less."""
        turn = max(TURN_SECONDS, 2 * self.step_seconds)
        rounds = max(least, min(MOST_ROUNDS, int(seconds / (sides * turn))))
        if self.steps is None:
            return rounds
        return min(rounds, max(least, (self.steps - record - 1) // (2 * self.facts["cycle"]) - 1))

    def _run(self, plan: Plan, progress: Say) -> Outcome:
        found = Outcome(plan.seed)
        logs = self.folder / plan.name
        sides = [replace(side, dropout=plan.dropout) for side in plan.sides]
        progress("starting")
        with session(self.program, sides, logs, plan.seed, self.facts, progress) as run:
            run.deadlines = {
                s.name: self.deadline - self.later * any(TECHNIQUES[n].slow for n in s.techniques)
                for s in sides
                if s.techniques or s.files
            }
            changes = [s.name for s in sides if s.name != OWN and not s.noise]
            if all(name in run.deadlines for name in changes):
                # Without a change that is ready, nobody waits for the script and its floors.
                run.deadlines |= {s.name: self.deadline for s in sides if s.name not in changes}
            for side in plan.sides:  # A compiled side takes long to reach its first boundary.
                found.sides[side.name] = Measured()
                run.attempt(run.facts, side.name)
            self._failed(run, plan, found)
            progress("comparing first steps")
            held = cache(lambda: self._held(plan))
            self._record(run, plan, found, plan.record, held)
            if changes and all(found.sides[name].status == LEFT_OUT for name in changes):
                return found
            run.deadlines.clear()
            self._drop_idle(run, plan, found)
            self._rounds(run, plan, found, progress)
            if plan.late:
                self._record(run, plan, found, plan.late, held)
            for name in [side.name for side in run.sides]:
                if facts := run.attempt(run.facts, name):
                    found.sides[name].memory = facts["memory"]
            self._failed(run, plan, found)
        return found

    def _held(self, plan: Plan) -> Record | None:
        """The record of the script with its weights held constant, from a separate short session; None
        if there is no time or the session fails."""
        if time.monotonic() > self.deadline:
            return None
        logs = self.folder / f"{plan.name}-held"
        sides = [Side(OWN, held=True, dropout=plan.dropout)]
        try:
            with session(self.program, sides, logs, plan.seed, self.facts) as run:
                return _recorded(run, OWN, plan.record)
        except SideEnded:
            return None

    def _record(self, run: Session, plan: Plan, found: Outcome, steps: int, held: Held) -> None:
        """Record steps of all sides, and compare the whole record of each side with the script's.

        The script and its floors come first in a plan, so each side can be judged as soon as it has
        taken its steps.
        """
        records: dict[str, Record] = {}
        short: dict[str, bool | None] = {}
        """Whether a side computes in fewer bits than float32; None if it hides that."""
        double: set[str] = set()  # sides that compute in 64 bits
        for side in plan.sides:
            name = side.name
            if (record := _recorded(run, name, steps)) is None:
                continue
            records[name] = record
            if facts := run.attempt(run.facts, name):
                short[name] = facts["short"]
                double |= {name} if facts["double"] else set()
                if not found.sides[name].optimizers:  # Not all may step in the late steps.
                    found.sides[name].optimizers = len(facts["optimizers"])
                    found.sides[name].tensors = facts["tensors"]
            if OWN in records and name != OWN and not side.noise:
                records[name] = records[name].named_as(records[OWN])
                certificate = self._certificate(plan, side, records, short, held, double)
                found.sides[name].certificate = certificate
                self.certified(name, certificate)
        self._failed(run, plan, found)

    def _certificate(
        self,
        plan: Plan,
        side: Side,
        records: dict[str, Record],
        short: dict[str, bool | None],
        held: Held,
        double: Set[str] = frozenset(),
    ) -> dict[str, Any]:
        """The certificate of a side, from the finest rounding that explains its differences: that of
        fewer bits only if the side or the script is ``short``, and without a verdict if they may be.
        Updates that differ although the gradients before them are equal are not rounding of the model."""
        found, script = records[side.name], records[OWN]
        own = side.rounding
        fine: Rounding = "float64" if {side.name, OWN} <= double else "float32"
        allowed: list[Rounding] = [own] if own else [fine]
        shorts = {short.get(name, False) for name in (side.name, OWN)}
        coarse = shorts != {False}
        if own:  # Its other order of sums is rounded to the format of the script.
            coarse = short.get(OWN) is True and own in FINE
        # Weights of 16 bits round their updates, also those of equal gradients.
        rounds = own and not {"bfloat16", "float16"}.isdisjoint(self.facts.get("formats", ()))
        if coarse:
            allowed.append("bfloat16")
        # A changed script may divide its batches otherwise.
        again = records.get(AGAIN, script)
        batches = ""  # how those of a changed script differ
        if not own and len(found.ranks) == len(script.ranks):
            batches = other_batches(found, script, again)
        divided = side.divided or bool(batches and not other_parts(found, script))
        if batches and not divided and varied(script):
            # Only numbers that no gradient depends on, such as padding, leave all of them the same.
            certificate = certify(found, script, [again], fine, plan.dropout, True, padded=True)
            if certificate.word == "same":
                reason = f"{certificate.reason}; {batches}, as with other padding"
                return asdict(replace(certificate, reason=reason)) | {"format": fine}
        for rounding in allowed:
            floors = [s.name for s in plan.sides if s.name.startswith(floor_name(rounding))]
            copies = [records[name] for name in floors if name in records] or [again]
            certificate = certify(
                found, script, copies, rounding, plan.dropout, divided, by_updates=not own
            )
            same = certificate.word == "same"
            if same or (not rounds and agrees_at_first(found, script, copies)):
                break
        if same and rounding != allowed[0] and True not in shorts:
            reason = f"{HIDDEN} ({certificate.reason})"
            certificate = replace(certificate, word="undecided", reason=reason)
        if certificate.word == "different" and floors and not {*floors} & {*records}:
            reason = f"{certificate.reason}; {SHOWN.get(floors[0], floors[0])} failed: {UNMEASURED}"
            certificate = replace(certificate, word="undecided", reason=reason)
        if not self.repeats and (certificate.batches or certificate.word == "undecided"):
            certificate = replace(certificate, word="undecided", reason=TWO_RUNS)
        if certificate.word == "different":
            # Only changed scripts may copy weights, which another session can show.
            more = (lambda: None) if own else held
            if cause := explained(found, script, again, more):
                certificate = replace(certificate, reason=f"{cause}; {certificate.reason}")
            if divided and not own:
                order = "the model gets the batch in a different order or in different parts"
                certificate = replace(certificate, reason=f"{certificate.reason}; {order}")
        return asdict(certificate) | {"format": rounding}

    def _drop_idle(self, run: Session, plan: Plan, found: Outcome) -> None:
        """Ends the sides that need no turns: floors, and changes without effect."""
        for side in plan.sides:
            facts = run.attempt(run.facts, side.name)
            if facts and facts["without_effect"]:
                run.drop(side.name)
                found.sides[side.name] = Measured("unsupported", facts["without_effect"][0])
            elif side.noise and side.name != AGAIN and not plan.late:
                run.drop(side.name)

    def _rounds(self, run: Session, plan: Plan, found: Outcome, progress: Say) -> None:
        """Takes turns. Each round has another order: if one side came first or last in all rounds, its
        turns would follow one another, and a disturbance would hit all other sides but not this one."""
        found.turn = max(1, self._turn(plan, self.steps))
        order = random.Random(plan.seed)
        for name in [side.name for side in run.sides]:
            run.attempt(run.steps, name, found.turn)
        for number in range(plan.rounds):
            if number % 5 == 0:
                progress(f"round {number + 1} of {plan.rounds}")
            names = [each.name for each in run.sides]
            for name in order.sample(names, len(names)):
                seconds = run.attempt(run.steps, name, found.turn)
                if seconds is not None:
                    found.sides[name].seconds.append(seconds)
            if OWN in run.failed:
                found.ended_early = not run.failed[OWN].why
                self.steps = run.failed[OWN].said.get("step", self.steps)
                break
            if time.monotonic() > self.deadline and number + 1 >= LEAST_ROUNDS:
                break

    def _failed(self, run: Session, plan: Plan, found: Outcome) -> None:
        """Sets the status of sides that ended early or were too late. Raises SideEnded if the unchanged
        script ended, unless it reached its end after at least one round, or if memory ran out for a floor:
        without it, rounding would count as another training."""
        self.failed = run.failed
        floors = {side.name for side in plan.sides if side.noise}
        for name, error in run.failed.items():
            if not error.why and found.sides[name].seconds:
                continue
            if name == OWN and error.why != TOO_LATE:
                raise error
            if name in floors and error.out_of_memory:
                raise error
            found.sides[name] = Measured(*status_of(error))


def _short_of_memory(plan: Plan, error: SideEnded) -> Outcome:
    """The outcome of a session for which there is too little memory. Which copy the system ends is chance."""
    reason = (
        f"there is too little memory for {len(plan.sides)} copies of the script at the same time: "
        f"{SHOWN[error.side]} ended ({error.what})"
    )
    return Outcome(plan.seed, sides={side.name: Measured(OOM, reason) for side in plan.sides})


def _recorded(run: Session, side: str, steps: int) -> Record | None:
    """Records ``steps`` more steps of a side; None if it ended."""
    taken = run.attempt(run.steps, side, steps, record=True)
    files = taken and run.attempt(run.records, side)
    return Record.read(files) if files else None


UNSUPPORTED = (
    "not support",
    "no available kernel",
    "notimplemented",
    "unsupported",
    "re-initialize cuda",  # in a worker whose data set uses the GPU
    "cannot pin",  # batches that are on the GPU already
    "view size is not compatible",  # of a tensor in another layout; torch says what to use instead
)


def status_of(error: SideEnded) -> tuple[str, str]:
    if error.why == TOO_LATE:
        return LEFT_OUT, error.why
    why = error.what or f"the script reached its end after {error.said.get('step', 0)} steps"
    text = f"{error.why} {error.said.get('trace') or ''}".lower()
    if error.out_of_memory:
        return OOM, why
    if reason := nvml.why_busy(error.why):
        return "unsupported", f"several copies of the script share a GPU, but {reason}"
    if any(words in text for words in UNSUPPORTED):
        return "unsupported", f"{error.place}{why}"
    return "failed", f"{error.place}{why} (see {error.log})"


def floor_name(rounding: Rounding) -> str:
    """Name of the side whose distance from the script is the floor of a rounding."""
    return AGAIN if rounding in ("exact", "float32") else f"floor_{rounding}"


FINE: tuple[Rounding, ...] = ("float32", "tf32")
"""Rounding that a script which computes in 16 bits makes coarser."""


def floors(sides: Sequence[Side], short: bool | None = False) -> list[Side]:
    """The disturbed copies of the script that the certificates of ``sides`` need; ``short`` if the script
    computes in fewer bits than float32."""
    needed: set[Rounding] = {side.rounding or "bfloat16" for side in sides}
    if short and not needed.isdisjoint(FINE):
        needed.add("bfloat16")
    return [Side(AGAIN, noise=NOISE["float32"])] + [
        Side(floor_name(rounding), noise=NOISE[rounding])
        for rounding in sorted(needed - {"exact", "float32"})
    ]
