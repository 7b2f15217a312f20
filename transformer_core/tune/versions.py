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
    "without dropout they train the same model: dropout draws other masks, or is in another place: no "
    "verdict is possible"
)
SAME_NUMBERS = (
    "without dropout they get the same batches and train the same model: batches and dropout masks are drawn "
    "from the same random numbers in another order: no verdict is possible; remedy: draw the batches with "
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
    side = Side(NEW, program=new)
    least = time.monotonic() - began + LEAST_SESSIONS * tuning.cost([side], ROUNDS)
    over = " in all, more than --time" if least > budget else " in all"
    say(f"at least {LEAST_SESSIONS} sessions: about {in_time(least)}{over}")
    needed = trusted.steps_needed + LATE
    certified: list[Outcome] = []
    sessions: list[Outcome] = []  # those of them that tell speeds
    looks, next_look = 0, SESSIONS

    def run(plan: Plan, stage: str) -> Outcome:
        try:
            found = tuning.sessions.run(plan, lambda text: say(f"{stage}: {text}"))
        except SideEnded as error:
            why = driver.why_ended(error, tuning.program, needed)
            raise driver.CannotObserve(f"{names[0]}: {why}") from None
        if OOM in (found.sides[OWN].status, found.sides[NEW].status):
            who = "" if found.short_of_memory else f"{names[1]}: "
            raise driver.CannotObserve(
                f"{who}{found.sides[NEW].reason}\nBoth versions run at the same time, together with "
                f"{len(plan.sides) - 2} copies of {names[0]} that measure rounding; remedy: end other programs "
                "that need memory, or give both versions a smaller batch or model"
            )
        one, other = found.sides[OWN], found.sides[NEW]
        if one.tensors == other.tensors and one.optimizers != other.optimizers:
            raise driver.CannotObserve(
                f"{names[0]} trains the same tensors with {one.optimizers} optimizers as {names[1]} with "
                f"{other.optimizers}. Each step of an optimizer counts as a step, so the steps of one version are "
                "not those of the other, and neither speeds nor trainings can be compared; remedy: compare "
                "versions with as many optimizers, and times of whole runs"
            )
        return found

    def speeds() -> list[Interval]:
        """The ratio of speeds, and that of the old version to itself."""
        ratios = [
            [log_ratio_of(Pair(name, OWN), s.log_ratios(name)) for s in sessions]
            for name in (NEW, AGAIN)
        ]
        return simultaneous_ratios(ratios, [looks] * len(ratios))

    for number in itertools.count(1):
        sides = [Side(OWN), *floors([side]), side]
        plan = Plan(f"compare-{number}", sides, 1000 * number, ROUNDS, tuning.record, late=LATE)
        found = run(plan, f"session {number}")
        for title, name, program in (
            (names[1], NEW, new),
            (f"{names[0]} with other rounding", AGAIN, old),
        ):
            if found.sides[name].status == LEFT_OUT:
                raise driver.CannotObserve(f"{title}: {TOO_LATE}; remedy: a longer --time")
            if found.sides[name].status != "ok":
                why = driver.why_ended(tuning.sessions.failed[name], program, needed)
                raise driver.CannotObserve(f"{title}: {why}")
        certified.append(found)
        # A script that trains for some time, not for some steps, may end in the first rounds.
        if min(len(found.log_ratios(name)) for name in (NEW, AGAIN)) > 1:
            sessions.append(found)
        if number >= LEAST_SESSIONS and time.monotonic() - began + found.took > budget:
            break
        if number == next_look:
            # Each look widens the interval, so that it holds whenever measuring stops. Looks are few.
            looks, next_look = looks + 1, 2 * next_look
            if len(sessions) < LEAST_SESSIONS:
                break
            speed, noise = speeds()
            if verdict_beside(noise, speed, tuning.margin) != "UNDECIDED":
                break
    if len(sessions) < LEAST_SESSIONS:
        raise driver.CannotObserve(
            f"{names[0]} or {names[1]} ends before their speeds can be compared; remedy: let them "
            "train longer, for a number of steps"
        )
    speed, noise = speeds()
    worst = max(certified, key=lambda s: WORDS.get(_certificate(s).get("word", "different"), 2))
    certificate = _certificate(worst)
    if certificate.get("word") == "different" and trusted.facts.get("dropout"):
        plan = replace(plan, name="compare-no-dropout", seed=worst.seed, dropout=False)
        without = _certificate(run(plan, "comparing without dropout"))
        if without.get("word") == "same":
            why = SAME_NUMBERS if certificate.get("batches") else WITHOUT_DROPOUT
            reason = f"{certificate['reason']}; {why}"
            certificate |= {"word": "undecided", "reason": reason}
    return {
        "old": names[0],
        "new": names[1],
        "reproducible": trusted.reproducible,
        "trust": trusted.trust,
        "ratio": speed.median,
        "low": speed.low,
        "high": speed.high,
        "verdict": verdict_beside(noise, speed, tuning.margin),
        "noise": [noise.low, noise.high],
        "same": certificate.get("word") == "same",
        "certificate": certificate,
        "seconds": time.monotonic() - began,
    }


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
