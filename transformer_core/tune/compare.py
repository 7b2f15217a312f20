"""``compare-training old.py new.py``: is a changed script faster, and does it train the same model?

Both run as they are, in turns. Their batches, losses, gradients and updates are compared over the
first steps and again after the last turn, so that work that is skipped later shows too.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from schemas.base import seconds_of
from schemas.config.run_spec import ScriptTask
from schemas.errors import ConfigError
from schemas.results import Pair
from transformer_core.common.files import write_text
from transformer_core.decide.intervals import simultaneous_ratios
from transformer_core.measure.session_ratio import log_ratio_of
from transformer_core.tune.coordinator import Program, Side
from transformer_core.tune.flow import CannotTune, Tuning, verdict
from transformer_core.tune.job import program_of
from transformer_core.tune.sessions import AGAIN, OWN, Outcome, Plan, SideEnded, floors, status_of

NEW = "new"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="compare-training",
        description="Compare two versions of a training script: is the new one faster, by how much, "
        "and does it train the same model? The exit status is 0 if it trains the same model, 1 if "
        "it does not, and 2 if they cannot be compared.",
        epilog="OLD and NEW are files, or commits of the repository if --script names the script.",
    )
    parser.add_argument("old", help="the old script, or a commit")
    parser.add_argument("new", help="the changed script, or a commit")
    parser.add_argument("--script", help="the script, if OLD and NEW are commits")
    parser.add_argument("--time", default="2min", help="time to spend (default: 2min)")
    parser.add_argument("--report", type=Path, help="write the answer to a file as Markdown")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument("--not-slower", action="store_true", help="exit with 1 if NEW is SLOWER")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of both scripts")
    return parser.parse_args(arguments)


def compare(old: Program, new: Program, folder: Path, budget: float) -> dict[str, Any]:
    """Compares ``new`` with ``old``. Raises CannotTune if one cannot be observed."""

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {text}", file=sys.stderr, flush=True)

    began = time.monotonic()
    tuning = Tuning(old, folder, say, budget)
    answer = tuning.trust()
    new = replace(new, boundary=tuning.program.boundary)
    side = Side(NEW, program=new)
    sessions: list[Outcome] = []
    for number in range(1, 5):
        if number > 3 and time.monotonic() - began > budget:
            break
        sides = [Side(OWN), *floors([side]), side]
        plan = Plan(f"compare-{number}", sides, 1000 * number, 6, tuning.record, late=2)
        try:
            found = tuning.sessions.run(plan, lambda text, n=number: say(f"session {n}: {text}"))  # type: ignore[misc]
        except SideEnded as error:
            raise CannotTune(f"{old.title}: {status_of(error)[1]}") from None
        measured = found.sides[NEW]
        if measured.status != "ok":
            raise CannotTune(f"{new.title}: {measured.status}, {measured.reason}")
        sessions.append(found)
    ratios = [
        [log_ratio_of(Pair(name, OWN), s.log_ratios(name)) for s in sessions]
        for name in (NEW, AGAIN)
    ]
    speed, noise = simultaneous_ratios(ratios)
    certificates = [s.sides[NEW].certificate or {} for s in sessions]
    worst = next((c for c in certificates if c.get("word") != "same"), certificates[0])
    return {
        "old": old.title,
        "new": new.title,
        "reproducible": answer.reproducible,
        "trust": answer.trust,
        "ratio": speed.median,
        "low": speed.low,
        "high": speed.high,
        "verdict": verdict(speed.low, speed.high),
        "noise": [noise.low, noise.high],
        "same": worst.get("word") == "same",
        "certificate": worst,
        "seconds": time.monotonic() - began,
    }


def markdown(found: dict[str, Any]) -> str:
    """The answer for a pull request."""
    same = found["certificate"]
    lines = [
        f"**{found['verdict']}**: `{found['new']}` is {found['ratio']:.2f} "
        f"[{found['low']:.2f}, {found['high']:.2f}] times as fast as `{found['old']}`.",
        "",
        f"**{'The same training' if found['same'] else 'NOT the same training'}**: {same['reason']}.",
        "",
        f"Run twice, the old one gives {found['trust']}."
        if found["reproducible"]
        else f"Beware: {found['trust']}.",
    ]
    if found["same"] and not same["identical"]:
        lines += ["", f"The difference is rounding as of {same['format']}."]
    return "\n".join(lines) + "\n"


def programs(given: argparse.Namespace, place: Path) -> tuple[Program, Program]:
    """Both versions, those of commits as files below ``place``. Raises ConfigError."""
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
            packed = subprocess.run(["git", "archive", which], capture_output=True, check=False)
            if packed.returncode:
                raise ValueError(f"{which}: {packed.stderr.decode().strip()}")
            subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
        command = (name, *given.arguments)
        task = ScriptTask(kind="script", command=command, directory=str(folder))
        found.append(program_of(task))
    return found[0], found[1]


def main(arguments: list[str] | None = None) -> int:
    """Compare two scripts; the exit status."""
    given = parse(arguments)
    place = Path(tempfile.mkdtemp(prefix="compare-"))
    try:
        old, new = programs(given, place)
        found = compare(old, new, place / "work", seconds_of(given.time))
    except (ConfigError, CannotTune, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(place, ignore_errors=True)
    text = markdown(found)
    if given.report is not None:
        write_text(given.report, text)
    print(json.dumps(found, indent=1) if given.json else text)
    slower = given.not_slower and found["verdict"] == "SLOWER"
    return 0 if found["same"] and not slower else 1


if __name__ == "__main__":
    sys.exit(main())
