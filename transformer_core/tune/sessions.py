"""Measures sides in one session: certificates from the first steps, then times in turns.

The outcome is one JSON file. A session that has its file is never run again, so a study that was
interrupted goes on where it stopped.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from math import ceil, inf, log
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from transformer_core.common.files import write_text
from transformer_core.tune.causes import explained
from transformer_core.tune.certificate import certify
from transformer_core.tune.coordinator import Program, Session, Side, SideEnded, session
from transformer_core.tune.records import Record
from transformer_core.tune.techniques.technique import NOISE, Rounding

OWN, AGAIN = "own", "again"
"""The script as it stands, and once more with its weights disturbed by float32 rounding: an equal
side, which shows the noise of the comparison."""
TURN_SECONDS = 0.15
"""Least seconds of a turn."""
LEAST_ROUNDS, MOST_ROUNDS = 3, 20
ROUNDS_SECONDS = 8.0
"""Seconds of all rounds of a session, if the steps are short enough."""


@dataclass
class Measured:
    """One side in one session."""

    status: str = "ok"
    """ok, oom, unsupported (with the reason), or failed."""
    reason: str = ""
    seconds: list[float] = field(default_factory=list)
    """Seconds of each round."""
    certificate: dict[str, Any] | None = None
    memory: dict[str, int] | None = None
    """Bytes: the peak of its steps, and what of it is known."""


@dataclass
class Outcome:
    """A session: its sides by name, and how many steps a turn had."""

    seed: int
    turn: int = 0
    sides: dict[str, Measured] = field(default_factory=dict)
    ended_early: bool = False
    """Whether the script reached its end before all rounds were done."""
    took: float = 0.0
    """Seconds of the whole session."""

    def log_ratios(self, name: str) -> list[float]:
        """Logarithms of the speed of a side over that of the script, one for each round."""
        own = self.sides[OWN].seconds
        return [log(a / b) for a, b in zip(own, self.sides[name].seconds, strict=False)]


@dataclass(frozen=True)
class Plan:
    """The plan of a session."""

    name: str
    """Name of its file."""
    sides: Sequence[Side]
    seed: int
    rounds: int
    record: int = 6
    """Steps that certificates compare."""
    dropout: bool = True
    late: int = 0
    """Steps that are compared once more after the last round."""


class Sessions:
    """Runs sessions of one program, and keeps their outcomes in ``folder``.

    ``key`` says what they are sessions of: files with another key are of another program.
    """

    def __init__(self, program: Program, folder: Path, key: str) -> None:
        self.program, self.folder, self.key = program, folder, key
        self.facts: dict[str, Any] = {}
        self.step_seconds = 1.0
        self.steps: int | None = None
        """Steps after which the script ends, once a session has seen it."""
        self.deadline = inf
        """By ``time.monotonic``; after it, sessions have the fewest rounds allowed."""
        self.certified: Callable[[str, dict[str, Any]], None] = lambda name, certificate: None
        """Is told each certificate of first steps as soon as there is one."""

    def run(self, plan: Plan, progress: Callable[[str], None]) -> Outcome:
        """The outcome of a session, from its file if it was done before. Raises SideEnded if the
        script itself fails."""
        # However many rounds an earlier command had time for: they are rounds of the same session.
        what = repr((self.key, replace(plan, rounds=0))).encode()
        file = self.folder / f"{plan.name}.json"
        digest = hashlib.sha256(what).hexdigest()
        if file.exists():
            kept = json.loads(file.read_text(encoding="utf-8"))
            if kept["digest"] == digest:
                return TypeAdapter(Outcome).validate_python(kept["outcome"])
        began = time.monotonic()
        found = self._whole(plan, progress)
        found.took = time.monotonic() - began
        text = json.dumps({"digest": digest, "outcome": asdict(found)}, indent=1)
        write_text(file, text + "\n")
        return found

    def _whole(self, plan: Plan, progress: Callable[[str], None]) -> Outcome:
        """The outcome of a session; repeats it with shorter turns if the script ended early."""
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
        """Steps of a turn: of each optimizer as many, and all turns within ``steps``; 0 if there
        are too few."""
        cycle = self.facts.get("cycle", 1)
        turn = max(1, ceil(TURN_SECONDS / self.step_seconds), min(2, plan.rounds))
        if steps is not None:
            turn = min(turn, (steps - plan.record - plan.late - 1) // (plan.rounds + 1))
        return -(-turn // cycle) * cycle if steps is None else turn // cycle * cycle

    def timed_steps(self, plan: Plan) -> int:
        """Steps of a side after those that are recorded first."""
        return (plan.rounds + 1) * max(1, self._turn(plan, self.steps)) + plan.late

    def rounds(self, sides: int, least: int, record: int) -> int:
        """Rounds of a session of so many sides, for some seconds: the more, the less a disturbed
        one matters."""
        turn = max(TURN_SECONDS, 2 * self.step_seconds)
        rounds = max(least, min(MOST_ROUNDS, int(ROUNDS_SECONDS / (sides * turn))))
        if self.steps is None:
            return rounds
        return min(rounds, max(least, (self.steps - record - 1) // (2 * self.facts["cycle"]) - 1))

    def _run(self, plan: Plan, progress: Callable[[str], None]) -> Outcome:
        found = Outcome(plan.seed)
        logs = self.folder / plan.name
        sides = [replace_dropout(side, plan.dropout) for side in plan.sides]
        progress("starting")
        with session(self.program, sides, logs, plan.seed, self.facts, progress) as run:
            self._begin(run, plan, found)
            progress("comparing first steps")
            held = cache(lambda: self._held(plan))
            self._record(run, plan, found, plan.record, held)
            self._drop_idle(run, plan, found)
            self._rounds(run, plan, found, progress)
            if plan.late:
                self._record(run, plan, found, plan.late, held)
            for side in [each.name for each in run.sides]:
                facts = run.attempt(side, lambda side=side: run.facts(side))  # type: ignore[misc]
                if facts:
                    found.sides[side].memory = facts["memory"]
            self._failed(run, found)
        return found

    def _begin(self, run: Session, plan: Plan, found: Outcome) -> None:
        """Waits until all sides are at their first boundary, which a compiled side reaches late."""
        for side in plan.sides:
            found.sides[side.name] = Measured()
            run.attempt(side.name, lambda side=side: run.facts(side.name))  # type: ignore[misc]
        self._failed(run, found)

    def _held(self, plan: Plan) -> Record | None:
        """The record of the script with its weights held still, from a short session of its own;
        None if there is no time or it fails."""
        if time.monotonic() > self.deadline:
            return None
        logs = self.folder / f"{plan.name}-held"
        sides = [Side(OWN, held=True, dropout=plan.dropout)]
        with (
            suppress(SideEnded),
            session(self.program, sides, logs, plan.seed, self.facts) as run,
        ):
            taken = run.attempt(OWN, lambda: run.steps(OWN, plan.record, record=True))
            files = taken and run.attempt(OWN, lambda: run.records(OWN))
            return Record.read(files) if files else None
        return None

    def _record(
        self,
        run: Session,
        plan: Plan,
        found: Outcome,
        steps: int,
        held: Callable[[], Record | None],
    ) -> None:
        """Record steps of all sides, and compare all that was recorded of each with the script.

        The script and its floors come first in a plan, so each side is judged as soon as it has
        taken its steps.
        """
        records: dict[str, Record] = {}
        for side in plan.sides:
            name = side.name
            taken = run.attempt(name, lambda name=name: run.steps(name, steps, record=True))  # type: ignore[misc]
            files = taken and run.attempt(name, lambda name=name: run.records(name))  # type: ignore[misc]
            if not files:
                continue
            records[name] = Record.read(files)
            if OWN in records and name != OWN and not side.noise:
                records[name] = records[name].named_as(records[OWN])
                certificate = self._certificate(plan, side, records, held)
                found.sides[name].certificate = certificate
                self.certified(name, certificate)
        self._failed(run, found)

    def _certificate(
        self,
        plan: Plan,
        side: Side,
        records: dict[str, Record],
        held: Callable[[], Record | None],
    ) -> dict[str, Any]:
        """The certificate of a side, by the finest rounding that explains its differences."""
        found, script = records[side.name], records[OWN]
        own = side.rounding
        allowed: tuple[Rounding, ...] = (own,) if own else ("float32", "bfloat16")
        for rounding in allowed:
            floor = records.get(floor_name(rounding), records.get(AGAIN, records[OWN]))
            certificate = certify(found, script, floor, rounding, plan.dropout, side.divided)
            if certificate.word == "same":
                break
        if certificate.word == "different":
            # A technique has no copies of weights: only changed scripts are worth another session.
            more = (lambda: None) if own else held
            if cause := explained(found, script, records.get(AGAIN, script), more):
                certificate = replace(certificate, reason=f"{cause}; {certificate.reason}")
        return certificate.to_json() | {"format": rounding}

    def _drop_idle(self, run: Session, plan: Plan, found: Outcome) -> None:
        """Ends sides that need no turns: floors, and changes without effect."""
        for side in plan.sides:
            facts = run.attempt(side.name, lambda side=side: run.facts(side.name))  # type: ignore[misc]
            if facts and facts["without_effect"]:
                run.drop(side.name)
                found.sides[side.name] = Measured("unsupported", facts["without_effect"][0])
            elif side.noise and side.name != AGAIN and not plan.late:
                run.drop(side.name)

    def _rounds(
        self, run: Session, plan: Plan, found: Outcome, progress: Callable[[str], None]
    ) -> None:
        """Takes turns. The order is reversed every round, so that no side always follows the same
        one."""
        found.turn = max(1, self._turn(plan, self.steps))
        for side in [each.name for each in run.sides]:
            run.attempt(side, lambda side=side: run.steps(side, found.turn))  # type: ignore[misc]
        for number in range(plan.rounds):
            if number % 5 == 0:
                progress(f"round {number + 1} of {plan.rounds}")
            names = [each.name for each in run.sides]
            for name in names if number % 2 else names[::-1]:
                seconds = run.attempt(name, lambda name=name: run.steps(name, found.turn))  # type: ignore[misc]
                if seconds is not None:
                    found.sides[name].seconds.append(seconds)
            late = time.monotonic() > self.deadline and number + 1 >= LEAST_ROUNDS
            if OWN in run.failed:
                found.ended_early = not run.failed[OWN].why
                self.steps = run.failed[OWN].said.get("step", self.steps)
                break
            if late:
                break

    def _failed(self, run: Session, found: Outcome) -> None:
        """Sets the status of sides that ended; SideEnded if the script itself ended."""
        for name, error in run.failed.items():
            finished = not error.why
            if name == OWN and not (finished and found.sides[OWN].seconds):
                raise error
            if finished and found.sides[name].seconds:
                continue
            found.sides[name] = Measured(*status_of(error))


def status_of(error: SideEnded) -> tuple[str, str]:
    """Status and reason of a side that ended."""
    why = error.why or f"the script reached its end after {error.said.get('step', 0)} steps"
    text = f"{why} {error.said.get('trace') or ''}".lower()
    if "out of memory" in text or "outofmemory" in text or "sigkill" in text:
        return "oom", why
    if (
        "not supported" in text
        or "no available kernel" in text
        or "notimplemented" in text
        or "unsupported" in text
    ):
        return "unsupported", why.splitlines()[0]
    return "failed", f"{why.splitlines()[0]} (see {error.log})"


def replace_dropout(side: Side, dropout: bool) -> Side:
    """``side`` with or without dropout."""
    return replace(side, dropout=dropout)


def floor_name(rounding: Rounding) -> str:
    """The side whose distance from the script is the floor of a rounding."""
    return AGAIN if rounding in ("exact", "float32") else f"floor_{rounding}"


def floors(sides: Sequence[Side]) -> list[Side]:
    """The disturbed copies of the script that the certificates of ``sides`` need."""
    needed = sorted({side.rounding or "bfloat16" for side in sides} - {"exact", "float32"})
    return [Side(AGAIN, noise=NOISE["float32"])] + [
        Side(floor_name(rounding), noise=NOISE[rounding]) for rounding in needed
    ]
