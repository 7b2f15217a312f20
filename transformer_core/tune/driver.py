"""Shared by all commands that observe a script: their options, their progress, and the reasons why a
script cannot be observed."""

import argparse
import ast
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from io import TextIOWrapper
from math import inf
from pathlib import Path
from typing import Any, TypeVar
from zipfile import is_zipfile

from pydantic import ValidationError

from schemas.base import MOST_SECONDS, seconds_of
from schemas.config.run_spec import ScriptTask
from schemas.errors import ConfigError, ConfigProblem, from_validation
from transformer_core.common.files import write_text
from transformer_core.parallel import nvml
from transformer_core.tune.isolation import TooLarge
from transformer_core.tune.order import OWN_FAULT, UNOBSERVED
from transformer_core.tune.program import (
    DEPRECATED,
    ENVIRONMENTS,
    LAUNCHERS,
    LAUNCHING,
    MODULE,
    OTHER_LAUNCHERS,
    Program,
    Say,
    SideEnded,
    plain,
    printed,
    shortened,
)

T = TypeVar("T")


SHOWN_LINES = 12  # lines of a failed script's output that its error quotes


class CannotObserve(Exception):
    """A script that cannot be observed: the message says why, and what to do."""

    killed = False  # whether its process ended without a word


REFUSED = (CannotObserve, ConfigError, TooLarge, ValueError)
"""Errors of a command line or a script, with a message for the user."""


def new_file(text: str) -> Path:
    """A file that a command can write later; ArgumentTypeError if it cannot."""
    path = Path(text)
    above = next((folder for folder in path.absolute().parents if folder.exists()), path)
    if path.is_dir() or not above.is_dir() or not os.access(above, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written: name a file in another folder")
    return path


def parser(name: str, description: str, seconds: str, epilog: str = "") -> argparse.ArgumentParser:
    """A command line with the options that all commands share."""
    made = argparse.ArgumentParser(
        prog=name,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    try:
        Path.cwd()
    except FileNotFoundError:
        made.error("the current folder no longer exists: change to another")
    about = f"approximate time to spend (default: {seconds})"
    made.add_argument("--time", type=_duration, default=seconds, help=about)
    about = "write the answer to a file as Markdown"
    made.add_argument("--report", type=new_file, metavar="FILE", help=about)
    made.add_argument("--json", action="store_true", help="print the answer as JSON")
    return made


def _duration(text: str) -> str:
    """The text of a duration; argparse prints the error."""
    with suppress(ValueError):
        if 1 <= seconds_of(text) <= MOST_SECONDS:
            return text
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a duration from 1 s to 168 h: write a number and its unit, such as 90s, 10min or 1h"
    )


def with_script(made: argparse.ArgumentParser, arguments: list[str] | None) -> argparse.Namespace:
    """The parsed arguments, which end with a script and its arguments."""
    rest = argparse.REMAINDER
    made.usage = "%(prog)s [options] SCRIPT [ARGUMENT ...]\n       %(prog)s [options] -m MODULE [ARGUMENT ...]"
    made.add_argument("-m", nargs=rest, help="a module and its arguments, in place of a script")
    about = "the script and its arguments, as after python"
    made.add_argument("command", nargs=rest, metavar="SCRIPT", help=about)
    given = made.parse_args(arguments)
    if given.m:
        given.command = ["-m", *given.m]
    if given.command[:1] == ["--"]:  # as many commands allow before the command that they start
        given.command = given.command[1:]
    if not given.command:
        made.error(f"which script? For instance: {made.prog} train.py")
    return given


def shown(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def progress(budget: float | None = None, show: Say = shown) -> Say:
    """A function that shows each text with the seconds since now, and those left of ``budget``."""
    began = time.monotonic()

    def say(text: str) -> None:
        gone = time.monotonic() - began
        left = ""
        if budget is not None:
            what = "left" if gone <= budget else "more than planned"
            left = f" (about {abs(budget - gone):.0f} s {what})"
        show(f"{gone:4.0f} s  {text}{left}")

    return say


def end_like_ctrl_c() -> None:
    """Lets a signal to end, and that of a terminal that closes, stop this command like Ctrl-C, so that it
    leaves nothing behind. Signals that are ignored, as under nohup, stay so."""
    for sent in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(sent) != signal.SIG_IGN:
            signal.signal(sent, signal.default_int_handler)


def refused(why: object) -> int:
    """Says why a command cannot be carried out; the exit status."""
    shown(str(why))
    return 2


def without_logs(why: object, folder: str) -> str:
    """The text of ``why`` without the paths of logs in ``folder``, which the command deletes."""
    return re.sub(rf"(, from| \(see) {re.escape(folder)}\S*\.txt\)?", "", str(why))


def answer(given: argparse.Namespace, found: Any, text: str, markdown: str) -> None:
    """Prints the answer and, with --report, writes it to a file."""
    if given.report is not None:
        write_text(given.report, markdown)
    # A terminal of another encoding must not lose the answer.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    print(json.dumps(found, indent=1) if given.json else text)


COMMAND_LINE = "command line"  # the source that errors name
PYTHON = re.compile(r"python[\d.]*")


def launches(word: str) -> bool:
    """Whether the first word of a command names what starts a script, and not the script."""
    name = Path(word).name
    return bool(PYTHON.fullmatch(name)) or name in LAUNCHERS


def program_given(command: Sequence[str], folder: Path | None = None) -> Program:
    """The program of a command line, in ``folder`` instead of the working directory. Raises ConfigError
    as :func:`program_of` does."""
    directory = None if folder is None else str(folder)
    try:
        task = ScriptTask(kind="script", command=tuple(command), directory=directory)
    except ValidationError as error:
        raise from_validation(error, ScriptTask, COMMAND_LINE) from None
    return program_of(task, COMMAND_LINE, "script")


def _split(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a launcher, and those of the script after it: the first argument that is a Python file, or
    ``-m`` and a module."""
    for number, word in enumerate(command):
        if number and (word in MODULE or word.endswith(".py")):
            first = "-m" if word in MODULE else word
            return [*command[:number]], [first, *command[number + 1 :]]
    return [], [*command]


def _started_otherwise(command: Sequence[str]) -> tuple[str, str] | None:
    """Why what a command starts cannot be observed, and what to do; None for a launcher that is known, or
    a script."""
    launcher, script = _split(command)
    if not launcher:
        return None
    name, words = Path(launcher[0]).name, shlex.join(script)
    before = [word for word in launcher if not PYTHON.fullmatch(Path(word).name)]
    if name in ENVIRONMENTS or "=" in name:
        return (
            "changes the environment of the script",
            f"put {shlex.join(before)} before this command, not after it",
        )
    if name in OTHER_LAUNCHERS:
        remedy = f"start them with torchrun: torchrun --nproc-per-node=N {words}"
        return f"starts ranks with {name}, which cannot be observed", remedy
    if name == DEPRECATED:
        return (
            f"starts ranks with {DEPRECATED}, which adds the argument --local-rank",
            "let the script read the variable LOCAL_RANK, and add --use-env or use torchrun",
        )
    return None


def _is_script(file: str) -> bool:
    """Whether an executable file is written in Python, as pip writes commands."""
    with Path(file).open("rb") as text:
        first = text.readline(200)
    return first.startswith(b"#!") and b"python" in first


def _not_python(file: Path) -> tuple[str, str] | None:
    """Why Python could not run a file, and what to do: it takes half a minute to find out in copies."""
    if file.suffix == ".ipynb":
        return "is a notebook", f"jupyter nbconvert --to script {shlex.quote(file.name)}"
    if file.suffix == ".pyc" or is_zipfile(file):
        return None
    with warnings.catch_warnings(action="ignore"):
        try:
            tree = ast.parse(file.read_bytes(), str(file))
            compile(tree, str(file), "exec")
        except OSError as error:
            return f"cannot be read: {error.strerror}", "check its permissions"
        except (SyntaxError, ValueError) as error:
            remedy = "correct it"
            if file.suffix != ".py":
                remedy += "; if it is a shell script, give the command in it that starts Python"
            return f"is not Python: {error}", remedy
    if not tree.body:
        return "is empty", "write a training into it, or give another file"
    return None


def program_of(task: ScriptTask, source: str = "study", field: str = "task.command") -> Program:
    """The program that a study names. Raises ConfigError, which names ``source`` and ``field``, if
    the command has no script or an unknown number of processes."""
    folder = Path(task.directory or ".").resolve()
    command = list(task.command)
    launcher: list[str] = []
    if PYTHON.fullmatch(Path(command[0]).name):
        command = command[1:]
        while command[:1] in (["-u"], ["-B"]):  # Every copy starts as if with these.
            command = command[1:]
    if command[:1] == ["-m"] and command[1:2] and command[1] in LAUNCHING:
        command = [LAUNCHING[command[1]], *command[2:]]
        if command[0] == DEPRECATED and (env := {"--use-env", "--use_env"} & {*_split(command)[0]}):
            command = ["torchrun", *(word for word in command[1:] if word not in env)]
    otherwise = _started_otherwise(command)
    if command and (name := Path(command[0]).name) in LAUNCHERS:
        first = name if name == "torchrun" else command[0]  # torchrun itself starts as a module
        launcher, command = _split(command)
        launcher = [first, *launcher[1:]]
    program = Program(tuple(command), folder, tuple(launcher))

    def refusal(problem: str, remedy: str) -> ConfigError:
        return ConfigError(
            [ConfigProblem(source, field, shlex.join(task.command), problem, remedy)]
        )

    if otherwise and not (folder / Path(command[0]).name).is_file():
        raise refusal(*otherwise)
    if command and command[0].startswith("-") and command[0] not in ("-m", "-c"):
        remedy = (
            "leave it out, or set the variable of the environment instead, such as PYTHONOPTIMIZE=1"
        )
        raise refusal(f"has an option of python, {command[0]}", remedy)
    if command == ["-m"]:
        raise refusal("names no module", "give a module after -m")
    if command[:1] == ["-m"] and not program.script.is_file():
        remedy = (
            "name it as Python imports it there, with dots and without .py: my_package.train; a "
            "package needs a __main__.py"
        )
        raise refusal(f"names no module that is found from {folder}", remedy)
    if command[:1] != ["-m"] and not (folder / "".join(command[:1])).is_file():
        remedy = "give the path of a Python file, relative to that folder"
        if command and (found := shutil.which(command[0])) and _is_script(found):
            remedy = f"give its path: {found}"
        elif command and not command[0].endswith(".py"):
            remedy += f"; launchers that this command knows: {', '.join(LAUNCHERS[:2])}"
        raise refusal(f"names no script in {folder}", remedy)
    if problem := _not_python(program.script):
        raise refusal(*problem)
    if program.option("nnodes", "num-machines") not in (None, "1", "1:1"):
        raise refusal("starts processes on several hosts", "use one host, with --nnodes=1")
    try:
        program.ranks  # noqa: B018
    except ValueError as error:
        raise refusal(f"starts an unknown number of processes: {error}", "give a number") from None
    return program


def observed(of: Any, work: Callable[[], T], least: int) -> T:
    """The result of ``work``, which observes ``of.program``. It is repeated with a changed program, and
    after ``of.steps`` is known, as :func:`learn` says. Raises CannotObserve."""
    while True:
        try:
            return work()
        except SideEnded as error:
            of.program, of.steps = learn(error, of.program, of.steps, least, of.say)


def learn(
    error: SideEnded, program: Program, steps: int | None, least: int, say: Say
) -> tuple[Program, int | None]:
    """How to start a script again that ended early, and the steps after which it ends, of two versions
    the fewer. Raises CannotObserve if that is impossible: ``least`` steps are needed."""
    said = error.said
    if not error.why and least <= said.get("step", 0) < (inf if steps is None else steps):
        say(f"the script ends after {said['step']} steps: sessions are short")
        return program, said["step"]
    no_step = error.why == "no step" or (not error.why and not said.get("step"))
    if no_step and program.boundary == "optimizer" and said.get("backwards"):
        say("the script uses no optimizer of torch: a step is a backward pass")
        return replace(program, boundary="backward"), steps
    refusal = CannotObserve(why_ended(error, program, least))
    refusal.killed = not said
    raise refusal from None


def why_ended(error: SideEnded, program: Program, least: int) -> str:
    """Explains why a program ended, with a remedy: ``least`` steps are needed."""
    output = _traceback(error) or printed(error.log)[-SHOWN_LINES:]
    tail = "".join(f"\n    {shortened(line)}" for line in output).rstrip()
    which = "the end of its traceback" if error.said.get("trace") else "its last lines"
    last = f"; {which}, from {error.log}:{tail}" if tail else ""
    kind = "factory" if program.factory is not None else "script"
    if error.why.startswith(UNOBSERVED):
        return f"the {kind} {error.why}"
    if "EOFError" in error.why or (error.said.get("asked") and not error.said["backwards"]):
        return (
            "the script reads from standard input, which is empty here; remedy: give it its "
            f"answers as arguments or in a file{last}"
        )
    if "name 'get_ipython' is not defined" in error.why:
        return (
            f"the {kind} was exported from a notebook: {error.place}{error.what}; remedy: delete its lines "
            f"with get_ipython(), which were magics and commands there{last}"
        )
    if not error.why and not error.said.get("backwards"):
        return (
            "the script ended without a backward pass of torch in its own process, so there "
            "is no training to observe; remedy: give it the arguments with which it trains, "
            f"and if it trains in several processes, start them with torchrun{last}"
        )
    if not error.why:
        return (
            f"the script ended after {error.said.get('step', 0)} steps, but needs at least {least} "
            "(hundreds are better); remedy: let it train longer (more steps, epochs or "
            f"samples){last}"
        )
    if error.out_of_memory:
        return (
            f"memory ran out: {error.place}{error.what}. Several copies of the {kind} run at the same time; "
            f"remedy: end other programs that need memory, or give it a smaller batch or model{last}"
        )
    if reason := nvml.why_busy(error.why):
        return f"several copies of the {kind} share a GPU, but {reason}{last}"
    if error.why.startswith(OWN_FAULT):
        return (
            f"{error.why} ({error.place.removesuffix(': ')}); remedy: report it with these lines, from "
            f"{error.log}:{tail}"
        )
    return f"the {kind} itself fails: {error.place}{error.what}{last or '; it has printed nothing'}"


def _traceback(error: SideEnded) -> list[str]:
    """The last lines of the traceback, without those of Python that start the script. If the user's own
    line is not among them, it comes first: a message may be long, or raised deep inside a library."""
    lines = plain(error.said.get("trace") or "").splitlines()
    lines = lines[
        max((n + 1 for n, line in enumerate(lines) if "<frozen runpy>" in line), default=0) :
    ]
    file, _, number = error.place.removesuffix(": ").rpartition(", line ")
    own = re.compile(rf'  File ".*{re.escape(file)}", line {number}\b')
    found = [n for n, line in enumerate(lines) if file and own.match(line)]
    if found and (at := found[-1]) < len(lines) - SHOWN_LINES:
        return [*lines[at : at + 2], "  ...", *lines[-SHOWN_LINES:]]
    return lines[-SHOWN_LINES:]
