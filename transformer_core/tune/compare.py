"""``compare-training old.py new.py``: is a changed script faster, and does it train the same model?

Imports no torch: a command line is read before anything starts.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from schemas.base import seconds_of
from schemas.errors import ConfigError, ConfigProblem
from transformer_core.common.markdown import cell
from transformer_core.tune import driver
from transformer_core.tune.answer import DISTURBED, disturbed
from transformer_core.tune.program import Program

WORDED = {
    "same": "The same training",
    "undecided": "Undecided whether it is the same training",
    "different": "NOT the same training",
}
COARSE = (
    "It is larger than rounding to float32: if neither version computes in a shorter format, something "
    "else is not the same."
)
WIDE = (
    "The interval is too wide to tell whether it is faster. A longer --time, a quieter machine or a "
    "training of more steps makes it narrower."
)
UNTRACKED = (
    "\nEach commit runs in a folder of its own, with the files of the commit alone; remedy: give data and "
    "other files that git does not track by absolute paths, or compare two files without --script"
)
LAUNCHER = "'torchrun --nproc-per-node 2' or 'python -m'"
NO_COMMIT = "give two commits of this folder's repository, with its submodules, or two files without --script"


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


def text(found: dict[str, Any], bold: str = "", code: str = "", foreign: Any = str) -> str:
    """The answer, with these marks around its verdicts and the names of the versions, and with its
    ``foreign`` texts escaped."""
    same = found["certificate"]
    seen = f" in {same['steps']} steps up to step {same['last']}" if found["same"] else ""
    lines = [
        f"{bold}{found['verdict']}{bold}: {code}{found['new']}{code} is {found['ratio']:.2f} "
        f"[{found['low']:.2f}, {found['high']:.2f}] times as fast as {code}{found['old']}{code}.",
        "",
        f"{bold}{WORDED[same['word']]}{bold}{seen}: {foreign(same['reason'])}.",
        "",
        f"Run twice, the old version gives {foreign(found['trust'])}."
        if found["reproducible"]
        else f"Beware: {foreign(found['trust'])}.",
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
        if same["format"] not in ("float64", "float32"):
            lines[-1] += " " + COARSE
    return "\n".join(lines)


def markdown(found: dict[str, Any]) -> str:
    """The answer for a pull request."""
    return text(found, "**", "`", cell) + "\n"


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
            top, path = place / f"version-{number + 1}", Path(given.script)
            if path.is_absolute():  # It would name the same file for both.
                path = path.parent.resolve() / path.name
            name = os.path.relpath(path)
            try:
                folder = top / _git("rev-parse", "--show-prefix").decode().strip()
                repository = Path(_git("rev-parse", "--show-cdup").decode().strip()).resolve()
                _unpack(repository, which, top)
                _follow_commits(repository, top)
            except (OSError, subprocess.CalledProcessError) as error:
                why = getattr(error, "stderr", None) or str(error).encode()
                problem = f"cannot be unpacked: {why.decode(errors='replace').strip()}"
                raise ConfigError(
                    [ConfigProblem(driver.COMMAND_LINE, "commit", which, problem, NO_COMMIT)]
                ) from None
            folder.mkdir(parents=True, exist_ok=True)
        command = (*given.launcher, name, *given.arguments)
        found.append(driver.program_given(command, folder))
    return found[0], found[1]


def _unpack(repository: Path, commit: str, top: Path) -> None:
    """Writes the files of a commit below ``top``, also those that it leaves out of archives (export-ignore), and
    those of the submodules that are in ``repository`` (mode 160000)."""
    top.mkdir(parents=True, exist_ok=True)
    index = top / ".git"  # a name that no file of a commit has
    inside = ("-C", str(repository), f"--work-tree={top}")  # whose .gitattributes count
    _git(*inside, "read-tree", commit, index=index)
    _git(*inside, "checkout-index", "--all", index=index)
    files = os.fsdecode(_git(*inside, "ls-files", "--stage", "-z", index=index))
    index.unlink()
    for its, name in re.findall(r"(?:^|\0)160000 (\w+) 0\t([^\0]+)", files):
        if (repository / name / ".git").exists():
            _unpack(repository / name, its, top / name)


def _follow_commits(repository: Path, top: Path) -> None:
    """Lets the folders of the repository in which modules are looked up be those of each commit, such as that below
    ``top``, if it has them: relative ones lie below its folder."""
    asked = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    # What pip has installed for editing is in the path of modules, or found by a hook.
    hooks = [vars(hook) for name, hook in sys.modules.items() if name.startswith("__editable__")]
    mapped = [str(Path(file).parent) for each in hooks for file in each["MAPPING"].values()]
    real = {each: Path(each).resolve() for each in [*asked, *mapped, *sys.path[1:]]}
    own = {
        each: os.path.relpath(file)
        for each, file in real.items()
        if file.is_relative_to(repository) and (top / file.relative_to(repository)).is_dir()
    }
    found = dict.fromkeys(own.get(each, each) for each in [*asked, *own])
    os.environ["PYTHONPATH"] = os.pathsep.join(found)


def _git(*words: str, index: Path | None = None) -> bytes:
    own = os.environ | ({"GIT_INDEX_FILE": str(index)} if index else {})
    return subprocess.run(["git", *words], capture_output=True, check=True, env=own).stdout


def main(arguments: list[str] | None = None) -> int:
    given = parse(arguments)
    driver.end_like_ctrl_c()
    with tempfile.TemporaryDirectory(prefix="compare-", ignore_cleanup_errors=True) as place:
        try:
            old, new = programs(given, Path(place))
            from transformer_core.tune.versions import compare  # imports torch, which takes seconds

            names = (given.old, given.new)
            found = compare(old, new, Path(place) / "work", seconds_of(given.time), names)
        except driver.REFUSED as error:
            why = driver.without_logs(error, place)
            if given.script is not None:
                for number, which in enumerate((given.old, given.new), 1):
                    why = why.replace(str(Path(place, f"version-{number}").resolve()), which)
                why += UNTRACKED * ("No such file" in why)
            return driver.refused(why)
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
