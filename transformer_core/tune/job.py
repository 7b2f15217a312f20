"""Find out what makes a script faster, as a job of a study."""

import json
import os
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

from schemas.config.run_spec import ImportedTask, RunSpec, ScriptTask
from schemas.config.study import Study
from transformer_core.common.endings import reproducing_command
from transformer_core.common.files import write_text
from transformer_core.common.folder_locks import exclusive
from transformer_core.common.job import Job
from transformer_core.common.progress import log
from transformer_core.common.records import read_record
from transformer_core.machine.provenance import collect
from transformer_core.run.supervisor import end_on_request
from transformer_core.run.warm_start import restore_given_threads
from transformer_core.tune.answer import FAILED, Answer
from transformer_core.tune.coordinator import Program
from transformer_core.tune.driver import CannotObserve, program_of, progress, shown
from transformer_core.tune.flow import Tuning
from transformer_core.tune.isolation import TooLarge
from transformer_core.tune.order import BEGAN


def find_out(study: Study, spec: RunSpec, folder: Path, code: str) -> Answer:
    """The answer for the script or factory of a study. Sessions of the same ``code`` below ``folder`` are
    reused. The answer says why if the training cannot be observed."""
    task = study.task
    assert isinstance(task, ScriptTask | ImportedTask)

    def show(line: str) -> None:
        log.info(line)
        if sys.stderr.isatty():  # The log itself goes only to its file.
            shown(line)

    if isinstance(task, ScriptTask):
        restore_given_threads()
        tuned, record = program_of(task), None
    else:
        settings = {
            "factory": task.factory,
            "options": task.options,
            "layers": task.layers,
            "seed": spec.training.seed,
            "device": spec.machine.device,
            "threads": spec.machine.threads,
        }
        tuned = Program(
            (task.factory,),
            Path.cwd(),
            factory=settings,
            devices=study.machine.devices_per_node,
            head=task.head,
            applied=task.applied,
        )
        record = task.steps
    budget, margin = study.tuning_seconds, study.comparison.margin
    try:
        say, names = progress(show=show), task.techniques
        verify = task.verify
        return Tuning(tuned, folder, say, budget, names, verify, record, margin, code).run()
    except (CannotObserve, TooLarge) as error:
        return Answer(command=tuned.title, status="failed", reason=str(error))


_ANSWERED = ".answered.json"
"""The study that the sessions next to it have answered. If the same answer is asked for again, they are
measured again; another study, such as one with more time, builds on them."""


class TuneJob(Job):
    """Finds out what makes the script or function of a study faster. If it cannot be observed, the
    exit status is 1 and :data:`FAILED` in the folder of the answer says why."""

    kind = "tune"

    study: Path  # study.json
    spec: Path  # spec.json of its baseline
    output: Path  # answer.json to write
    changes: Path  # changes.diff to write
    code: str = ""  # digest of the programs that run the sessions

    def run(self, log_file: Path | None) -> int:
        end_on_request()
        study, spec = read_record(self.study, Study), read_record(self.spec, RunSpec)
        folder = self.output.parent.resolve()
        started = datetime.now(UTC)
        with exclusive(folder):
            (folder / FAILED).unlink(missing_ok=True)
            asked, answered = study.canonical_json(), folder / "sessions" / _ANSWERED
            if answered.exists() and answered.read_bytes() == asked.encode():
                shutil.rmtree(answered.parent)
            answer = find_out(study, spec, folder, self.code)
            if answer.status != "ok":
                if BEGAN not in os.environ:  # tune-training prints the answer itself
                    log.error("%s cannot be tuned: %s", answer.command, answer.reason)
                write_text(folder / FAILED, json.dumps(answer.to_json(), indent=1) + "\n")
                return 1
            origin = collect(spec, reproducing_command(self.output), started)
            found = answer.to_json() | {"provenance": origin.model_dump(mode="json")}
            write_text(self.changes, answer.diff)
            write_text(self.output, json.dumps(found, indent=1) + "\n")
            write_text(answered, asked)
        return 0
