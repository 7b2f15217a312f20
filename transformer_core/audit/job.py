"""Does a study's baseline train as it says? Its audit, as a job."""

import json
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

from schemas.config.run_spec import RunSpec, ScriptTask
from schemas.config.study import Study
from schemas.errors import ConfigError
from transformer_core.audit.flow import Answer, Audit
from transformer_core.common.endings import reproducing_command
from transformer_core.common.files import write_text
from transformer_core.common.job import Job
from transformer_core.common.progress import log
from transformer_core.common.records import read_record
from transformer_core.machine.provenance import collect
from transformer_core.tune.coordinator import Program, SideEnded
from transformer_core.tune.driver import CannotObserve, program_of
from transformer_core.tune.isolation import TooLarge

SECONDS = 20.0  # about as long the audit of a baseline may take, beside the starts of its processes


def own_training(spec: Path, data: Path, folder: Path) -> Program:
    """The project's own training of a run spec, as anybody may start it."""
    command = ["-m", "transformer_core.training", "--spec", str(spec.resolve())]
    command += ["--data", str(data.resolve()), "--output", str(folder / "output")]
    processes = read_record(spec, RunSpec).world_size
    launcher = ("torchrun", "--standalone", f"--nproc-per-node={processes}")
    directory = folder / "empty"
    directory.mkdir(parents=True, exist_ok=True)
    return Program(tuple(command), directory, launcher if processes > 1 else ())


class AuditJob(Job):
    """Tests the relations that the training of a baseline has to itself. An audit that cannot be
    done is an answer too: it says why."""

    kind = "audit"

    study: Path  # study.json
    spec: Path  # spec.json of its baseline
    data: Path | None = None  # folder of the shards; null for a script
    output: Path  # audit.json to write

    def run(self, log_file: Path | None) -> None:
        study, spec = read_record(self.study, Study), read_record(self.spec, RunSpec)
        began, started = time.monotonic(), datetime.now(UTC)
        folder = self.output.with_suffix("").resolve()
        try:
            if isinstance(study.task, ScriptTask):
                program = program_of(study.task)
            elif spec.machine.nodes > 1 or self.data is None:
                raise CannotObserve("trainings over several hosts, and functions, are not audited")
            else:
                program = own_training(self.spec, self.data, folder)
            answer = Audit(program, folder, log.info, SECONDS).run()
        except (CannotObserve, ConfigError, SideEnded, TooLarge, ValueError) as error:
            answer = Answer(study.baseline, "failed", str(error))
        answer.command, answer.seconds = study.baseline, time.monotonic() - began
        shutil.rmtree(folder, ignore_errors=True)
        origin = collect(spec, reproducing_command(self.output), started)
        found = answer.to_json() | {"provenance": origin.model_dump(mode="json")}
        write_text(self.output, json.dumps(found, indent=1) + "\n")
        log.info("%s: %s: %s", study.baseline, answer.status, answer.reason or answer.findings)
