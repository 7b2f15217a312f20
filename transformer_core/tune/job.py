"""Find out what makes a script faster: ``python -m transformer_core.tune.job``."""

import argparse
import json
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from schemas.base import seconds_of
from schemas.config.run_spec import RunSpec
from schemas.config.script import ScriptTask
from schemas.config.study import Study
from schemas.errors import ConfigError, ConfigProblem
from transformer_core.common.endings import program, reproducing_command
from transformer_core.common.files import write_text
from transformer_core.common.progress import log, log_to
from transformer_core.common.records import read_record
from transformer_core.machine.provenance import collect
from transformer_core.run.folder_locks import exclusive
from transformer_core.tune.coordinator import LAUNCHERS, Program
from transformer_core.tune.flow import Answer, CannotTune, Tuning
from transformer_core.tune.isolation import TooLarge

SECONDS = 300.0
"""Seconds to spend where the study sets no time."""


def program_of(task: ScriptTask) -> Program:
    """The program that a study names. Raises ConfigError for a command that cannot be one."""
    folder = Path(task.directory or ".").resolve()
    command = list(task.command)
    launcher: list[str] = []
    if Path(command[0]).name in LAUNCHERS:
        # The script is the first argument that is a Python file, or what follows -m.
        split = next(
            (n for n, a in enumerate(command) if n and (a.endswith(".py") or a == "-m")), 0
        )
        launcher, command = command[:split], command[split:]
    if command and Path(command[0]).name.startswith("python"):
        command = command[1:]
    script = command[0] if command else ""
    if script != "-m" and not (folder / script).is_file():
        raise ConfigError(
            [
                ConfigProblem(
                    "study",
                    "task.command",
                    shlex.join(task.command),
                    f"names no script in {folder}",
                    "give the path of a Python file, relative to that folder",
                )
            ]
        )
    return Program(tuple(command), folder, tuple(launcher))


def find_out(study: Study, task: ScriptTask, folder: Path) -> Answer:
    """The answer for the script of a study. What is needed to go on lies below ``folder``."""
    began = time.monotonic()

    def say(text: str) -> None:
        log.info("%4.0f s  %s", time.monotonic() - began, text)

    budget = seconds_of(study.time) if study.time is not None else SECONDS
    tuned = program_of(task)
    try:
        return Tuning(tuned, folder, say, budget, task.techniques, task.verify).run()
    except (CannotTune, TooLarge) as error:
        return Answer(command=tuned.title, status="failed", reason=str(error))


@program
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.tune.job",
        description="Find out what makes the training script of a study faster.",
    )
    parser.add_argument("--study", type=Path, required=True, help="study.json")
    parser.add_argument("--spec", type=Path, required=True, help="spec.json of its baseline")
    parser.add_argument("--output", type=Path, required=True, help="answer.json")
    parser.add_argument("--changes", type=Path, required=True, help="changes.diff")
    parser.add_argument("--log-file", type=Path, help="file for plain log lines")
    given = parser.parse_args()
    log_to(given.log_file)
    study, spec = read_record(given.study, Study), read_record(given.spec, RunSpec)
    if not isinstance(study.task, ScriptTask):
        remedy = "take task: {kind: script, command: [train.py]}"
        problem = ConfigProblem("study", "task.kind", study.task.kind, "is no script", remedy)
        raise ConfigError([problem])
    folder = given.output.parent
    started = datetime.now(UTC)
    with exclusive(folder):
        answer = find_out(study, study.task, folder)
        origin = collect(spec, reproducing_command(given.output), started)
        found = answer.to_json() | {"provenance": origin.model_dump(mode="json")}
        write_text(given.changes, answer.diff)
        write_text(given.output, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
