"""``compare-training old.py new.py``: is a changed script faster, and does it train the same model?

Both run unchanged, in turns. Their batches, losses, gradients and updates are compared over the
first steps, and all but the batches again after the last turn, which also reveals work that is
skipped later.
"""

import argparse
import itertools
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from schemas.base import seconds_of
from schemas.errors import ConfigError, ConfigProblem
from schemas.results import Interval, Pair
from transformer_core.decide.intervals import simultaneous_ratios
from transformer_core.measure.session_ratio import log_ratio_of
from transformer_core.tune import driver
from transformer_core.tune.answer import DISTURBED, disturbed
from transformer_core.tune.coordinator import Program, Side, SideEnded
from transformer_core.tune.flow import (
    LEAST_SESSIONS,
    SESSIONS,
    WORDS,
    Tuning,
    in_time,
    verdict_beside,
)
from transformer_core.tune.sessions import AGAIN, OOM, OWN, Outcome, Plan, floors, status_of

NEW = "new"
ROUNDS = 6  # turns of each version in a session
WORDED = {
    "same": "The same training",
    "undecided": "Undecided whether it is the same training",
    "different": "NOT the same training",
}
COARSE = (
    "It is larger than rounding to float32: if neither version computes in a shorter format, something "
    "else is not the same."
)
WITHOUT_DROPOUT = (
    "without dropout they train the same model: dropout draws other masks, or is in another place: no "
    "verdict is possible"
)
SAME_NUMBERS = (
    "without dropout they get the same batches and train the same model: batches and dropout masks are drawn "
    "from the same random numbers in another order: no verdict is possible; remedy: draw the batches with "
    "a generator of their own in both"
)
WIDE = (
    "The interval is too wide to tell whether it is faster. A longer --time, a quieter machine or a "
    "training of more steps makes it narrower."
)
LAUNCHER = "'torchrun --nproc-per-node 2' or 'python -m'"
NO_COMMIT = "give two commits of the repository in this folder, or two files without --script"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    made = driver.parser(
        "compare-training",
        "Compare two versions of a training script: is the new one faster, by how much,\nand does it "
        "train the same model? The exit status is 0 if it trains the same\nmodel, 1 if it does not, "
        "and 2 if they cannot be compared or no verdict is possible.",
        "2min",
        "OLD and NEW are files, or commits of the repository if --script names the script.\n"
        "At least two sessions are measured, which may take longer than --time.",
    )
    made.add_argument("old", metavar="OLD", help="the old script, or a commit")
    made.add_argument("new", metavar="NEW", help="the changed script, or a commit")
    about = "the script, if OLD and NEW are commits"
    made.add_argument("--script", metavar="FILE", help=about)
    about = f"command that starts both scripts, such as {LAUNCHER}"
    made.add_argument("--launcher", metavar="COMMAND", type=shlex.split, default=[], help=about)
    made.add_argument("--not-slower", action="store_true", help="exit with 1 if NEW is SLOWER")
    about = "arguments of both scripts"
    rest = made.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help=about)
    rest.required = False  # or the error for a missing NEW asks for arguments, too
    given, unknown = made.parse_known_args(arguments)
    if "-m" in unknown or (given.script is None and driver.launches(given.old)):
        made.error(f"give what starts both scripts as --launcher, such as {LAUNCHER}")
    if unknown:
        made.error(f"unrecognized arguments: {' '.join(unknown)}")
    return given


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
    certified: list[Outcome] = []
    sessions: list[Outcome] = []  # those of them that tell speeds
    looks, next_look = 0, SESSIONS

    def run(plan: Plan, stage: str) -> Outcome:
        try:
            found = tuning.sessions.run(plan, lambda text: say(f"{stage}: {text}"))
        except SideEnded as error:
            raise driver.CannotObserve(f"{names[0]}: {status_of(error)[1]}") from None
        if OOM in (found.sides[OWN].status, found.sides[NEW].status):
            who = "" if found.short_of_memory else f"{names[1]}: "
            raise driver.CannotObserve(
                f"{who}{found.sides[NEW].reason}\nBoth versions run at the same time, together with "
                f"{len(plan.sides) - 2} copies of {names[0]} that measure rounding; remedy: end other programs "
                "that need memory, or give both versions a smaller batch or model"
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
        plan = Plan(f"compare-{number}", sides, 1000 * number, ROUNDS, tuning.record, late=2)
        found = run(plan, f"session {number}")
        for title, side_name in ((names[1], NEW), (f"{names[0]} with other rounding", AGAIN)):
            measured = found.sides[side_name]
            if measured.status != "ok":
                raise driver.CannotObserve(f"{title}: {measured.status}, {measured.reason}")
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


def text(found: dict[str, Any], bold: str = "", code: str = "") -> str:
    """The answer, with these marks around its verdicts and the names of the versions."""
    same = found["certificate"]
    seen = f" in {same['steps']} steps up to step {same['last']}" if found["same"] else ""
    lines = [
        f"{bold}{found['verdict']}{bold}: {code}{found['new']}{code} is {found['ratio']:.2f} "
        f"[{found['low']:.2f}, {found['high']:.2f}] times as fast as {code}{found['old']}{code}.",
        "",
        f"{bold}{WORDED[same['word']]}{bold}{seen}: {same['reason']}.",
        "",
        f"Run twice, the old version gives {found['trust']}."
        if found["reproducible"]
        else f"Beware: {found['trust']}.",
    ]
    if disturbed(*found["noise"]):
        lines += ["", DISTURBED]
    elif found["verdict"] == "UNDECIDED":
        lines += ["", WIDE]
    if found["same"] and not same["identical"]:
        lines += [
            "",
            f"The difference of losses and updates is no larger than rounding to {same['format']}.",
        ]
        if same["format"] != "float32":
            lines[-1] += " " + COARSE
    return "\n".join(lines)


def markdown(found: dict[str, Any]) -> str:
    """The answer for a pull request."""
    return text(found, "**", "`") + "\n"


def programs(given: argparse.Namespace, place: Path) -> tuple[Program, Program]:
    """Both versions; those of commits are unpacked below ``place``. Raises ConfigError."""
    here = Path.cwd()
    found = []
    for number, which in enumerate((given.old, given.new)):
        if given.script is None:
            path = Path(which)
            folder = here if path.suffix == ".py" and not path.is_absolute() else path.parent
            name = which if folder == here else path.name
        else:
            folder, name = place / f"version-{number + 1}", given.script
            folder.mkdir(parents=True)
            try:
                git = ["git", "archive", which]
                packed = subprocess.run(git, capture_output=True, check=True).stdout
            except (OSError, subprocess.CalledProcessError) as error:
                why = getattr(error, "stderr", None) or str(error).encode()
                problem = f"cannot be unpacked: {why.decode(errors='replace').strip()}"
                raise ConfigError(
                    [ConfigProblem(driver.COMMAND_LINE, "commit", which, problem, NO_COMMIT)]
                ) from None
            subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
        command = (*given.launcher, name, *given.arguments)
        found.append(driver.program_given(command, folder))
    return found[0], found[1]


def main(arguments: list[str] | None = None) -> int:
    given = parse(arguments)
    driver.end_like_ctrl_c()
    with tempfile.TemporaryDirectory(prefix="compare-", ignore_cleanup_errors=True) as place:
        try:
            old, new = programs(given, Path(place))
            names = (old.title, new.title)
            if given.script is not None:
                names = (f"{given.old}: {names[0]}", f"{given.new}: {names[1]}")
            found = compare(old, new, Path(place) / "work", seconds_of(given.time), names)
        except driver.REFUSED as error:
            return driver.refused(driver.without_logs(error, place))
        except KeyboardInterrupt:
            driver.shown("\nStopped.")
            return 130
    driver.answer(given, found, text(found), markdown(found))
    slower = given.not_slower and found["verdict"] == "SLOWER"
    if found["certificate"]["word"] == "undecided":
        return 2
    return 0 if found["same"] and not slower else 1


if __name__ == "__main__":
    sys.exit(main())
