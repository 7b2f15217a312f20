"""Compares two versions of a script: is the new one faster, and does it train the same model?

Both run unchanged, in turns. Their batches, losses, gradients and updates are compared over the
first steps, and all but the batches again after the last turn, which also reveals work that is
skipped later.
"""

import itertools
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from schemas.results import Interval, Pair
from transformer_core.decide.intervals import simultaneous_ratios
from transformer_core.measure.session_ratio import log_ratio_of
from transformer_core.tune import driver
from transformer_core.tune.answer import LEFT_OUT
from transformer_core.tune.coordinator import TOO_LATE, Program, Side, SideEnded
from transformer_core.tune.flow import SESSIONS, Tuning, in_time
from transformer_core.tune.results import LEAST_SESSIONS, WORDS, verdict_beside
from transformer_core.tune.sessions import AGAIN, OOM, OWN, Outcome, Plan, floors

NEW = "new"
ROUNDS = 6  # turns of each version in a session
LATE = 2  # steps that are compared again after the last turn
WITHOUT_DROPOUT = (
    "without dropout they train the same model: dropout draws different masks, or is in a different place: no "
    "verdict is possible"
)
SAME_NUMBERS = (
    "without dropout they get the same batches and train the same model: batches and dropout masks are drawn "
    "from the same random numbers in a different order: no verdict is possible; remedy: draw the batches with "
    "a generator of their own in both"
)


def compare(
    old: Program, new: Program, folder: Path, budget: float, names: tuple[str, str]
) -> dict[str, Any]:
    """Compares ``new`` with ``old``, which the answer calls by ``names``. Raises CannotObserve if one
    of them cannot be observed."""
    began, say = time.monotonic(), driver.progress()
    if equal := equal_text(old, new):
        say(equal)
    tuning = Tuning(old, folder, say, budget)
    trusted = tuning.trust()
    new = replace(new, boundary=tuning.program.boundary)
    versions = _Versions(tuning, new, names, trusted.steps_needed + LATE, say)
    least = time.monotonic() - began + LEAST_SESSIONS * tuning.cost([versions.side], ROUNDS)
    over = " in all, more than --time" if least > budget else " in all"
    say(f"at least {LEAST_SESSIONS} sessions: about {in_time(least)}{over}")
    next_look = SESSIONS
    for number in itertools.count(1):
        took = versions.take_turns(number)
        if number >= LEAST_SESSIONS and time.monotonic() - began + took > budget:
            break
        if number == next_look:
            # Each look widens the interval, so that it holds whenever measuring stops. Looks are few.
            versions.looks, next_look = versions.looks + 1, 2 * next_look
            if len(versions.timed) < LEAST_SESSIONS or versions.verdict != "UNDECIDED":
                break
    if len(versions.timed) < LEAST_SESSIONS:
        raise driver.CannotObserve(
            f"{names[0]} or {names[1]} ends before their speeds can be compared; remedy: let them "
            "train longer, for a number of steps"
        )
    speed, noise = versions.speeds()
    certificate = versions.certificate(bool(trusted.facts.get("dropout")))
    return {
        "old": names[0],
        "new": names[1],
        "reproducible": trusted.reproducible,
        "trust": trusted.trust,
        "ratio": speed.median,
        "low": speed.low,
        "high": speed.high,
        "verdict": versions.verdict,
        "noise": [noise.low, noise.high],
        "same": certificate.get("word") == "same",
        "certificate": certificate,
        "seconds": time.monotonic() - began,
    }


class _Versions:
    """Sessions in which both versions take turns."""

    def __init__(
        self, tuning: Tuning, new: Program, names: tuple[str, str], steps: int, say: driver.Say
    ) -> None:
        self.tuning, self.new, self.names, self.say = tuning, new, names, say
        self.steps = steps  # that each version must take in a session
        self.side = Side(NEW, program=new)
        self.all: list[Outcome] = []
        self.timed: list[Outcome] = []  # those of them that tell speeds
        self.looks = 0  # at speeds, to decide whether to go on

    def take_turns(self, number: int) -> float:
        """Runs the session with this ``number``, and returns its seconds."""
        found = self._run(self._plan(f"compare-{number}", 1000 * number), f"session {number}")
        for title, name, program in (
            (self.names[1], NEW, self.new),
            (f"{self.names[0]} with other rounding", AGAIN, self.tuning.program),
        ):
            if found.sides[name].status == LEFT_OUT:
                raise driver.CannotObserve(f"{title}: {TOO_LATE}; remedy: a longer --time")
            if found.sides[name].status != "ok":
                why = driver.why_ended(self.tuning.sessions.failed[name], program, self.steps)
                raise driver.CannotObserve(f"{title}: {why}")
        self.all.append(found)
        # A script that trains for some time, not for some steps, may end in the first rounds.
        if min(len(found.log_ratios(name)) for name in (NEW, AGAIN)) > 1:
            self.timed.append(found)
        return found.took

    def speeds(self) -> tuple[Interval, Interval]:
        """The ratio of speeds, and that of the old version to itself."""
        ratios = [
            [log_ratio_of(Pair(name, OWN), session.log_ratios(name)) for session in self.timed]
            for name in (NEW, AGAIN)
        ]
        speed, noise = simultaneous_ratios(ratios, [self.looks] * len(ratios))
        return speed, noise

    @property
    def verdict(self) -> str:
        speed, noise = self.speeds()
        return verdict_beside(noise, speed, self.tuning.margin)

    def certificate(self, dropout: bool) -> dict[str, Any]:
        """The worst certificate of all sessions; if it is different and there is ``dropout``, another session
        without it tells whether only masks differ."""
        worst = max(
            self.all, key=lambda each: WORDS.get(_certificate(each).get("word", "different"), 2)
        )
        found = _certificate(worst)
        if found.get("word") == "different" and dropout:
            plan = replace(self._plan("compare-no-dropout", worst.seed), dropout=False)
            without = _certificate(self._run(plan, "comparing without dropout"))
            if without.get("word") == "same":
                why = SAME_NUMBERS if found.get("batches") else WITHOUT_DROPOUT
                found |= {"word": "undecided", "reason": f"{found['reason']}; {why}"}
        return found

    def _plan(self, name: str, seed: int) -> Plan:
        sides = [Side(OWN), *floors([self.side]), self.side]
        return Plan(name, sides, seed, ROUNDS, self.tuning.record, late=LATE)

    def _run(self, plan: Plan, stage: str) -> Outcome:
        """The outcome of a session. Raises CannotObserve if the old version ends, if there is too little memory, or if
        steps of one version are not those of the other."""
        try:
            found = self.tuning.sessions.run(plan, lambda text: self.say(f"{stage}: {text}"))
        except SideEnded as error:
            why = driver.why_ended(error, self.tuning.program, self.steps)
            raise driver.CannotObserve(f"{self.names[0]}: {why}") from None
        old, new = self.names
        one, other = found.sides[OWN], found.sides[NEW]
        if OOM in (one.status, other.status):
            who = "" if found.short_of_memory else f"{new}: "
            raise driver.CannotObserve(
                f"{who}{other.reason}\nBoth versions run at the same time, together with "
                f"{len(plan.sides) - 2} copies of {old} that measure rounding; remedy: end other programs "
                "that need memory, or give both versions a smaller batch or model"
            )
        if one.tensors == other.tensors and one.optimizers != other.optimizers:
            raise driver.CannotObserve(
                f"{old} trains the same tensors with {one.optimizers} optimizers as {new} with "
                f"{other.optimizers}. Each step of an optimizer counts as a step, so the steps of one version are "
                "not those of the other, and neither speeds nor trainings can be compared; remedy: compare "
                "versions with as many optimizers, and times of whole runs"
            )
        return found


def equal_text(old: Program, new: Program) -> str:
    """A sentence that says so if both scripts have the same text; otherwise empty. Comparing a script with
    itself shows how far its own speeds scatter, so it is allowed."""
    files = old.script, new.script
    if not all(file.is_file() for file in files) or files[0].read_bytes() != files[1].read_bytes():
        return ""
    if old.script.parent != new.script.parent:
        return "both scripts have the same text: they differ only if other files of theirs do"
    return "both scripts have the same text: this compares a script with itself"


def _certificate(outcome: Outcome) -> dict[str, Any]:
    return outcome.sides[NEW].certificate or {}
