"""The audit of a study's baseline, as a job."""

import json
import re
import shutil
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from schemas.config.run_spec import RunSpec
from schemas.errors import Refusal
from transformer_core.audit.__main__ import headline
from transformer_core.audit.flow import Audit
from transformer_core.audit.relations import Answer
from transformer_core.common.digests import write_result
from transformer_core.common.endings import count_failure, reproducing_command
from transformer_core.common.job import Job
from transformer_core.common.progress import log
from transformer_core.common.records import read_record
from transformer_core.data.sharding.shard_store import open_training_shards
from transformer_core.machine.provenance import collect
from transformer_core.run.order import shard_manifests
from transformer_core.run.supervisor import end_on_request
from transformer_core.tune.coordinator import Program, SideEnded
from transformer_core.tune.driver import CannotObserve
from transformer_core.tune.isolation import TooLarge

SECONDS = 20.0  # approximate time for the audit of a baseline, without the starts of its processes

_OF_SYSTEM = re.compile(r"\[Errno \d+\]|os error \d+")  # in messages of Python and of Rust


def own_training(spec: Path, data: Path, folder: Path) -> Program:
    """The project's own training of a run spec, with the command that a user would type."""
    command = ["-m", "transformer_core.training", "--spec", str(spec.resolve())]
    # Copies of the training run at the same time, each in a folder of its own.
    command += ["--data", str(data.resolve()), "--output", "output"]
    processes = read_record(spec, RunSpec).world_size
    launcher = ("torchrun", "--standalone", f"--nproc-per-node={processes}")
    directory = folder / "empty"
    directory.mkdir(parents=True, exist_ok=True)
    # The model may be the user's own.
    started_in = Path.cwd()
    return Program(tuple(command), directory, launcher if processes > 1 else (), started_in)


class AuditJob(Job):
    """Audits the training of a study's baseline. If that is impossible, the answer says why."""

    kind = "audit"

    spec: Path  # spec.json of the baseline
    data: Path  # folder of the shards
    output: Path  # audit.json to write

    def run(self, log_file: Path | None) -> None:
        end_on_request()
        spec = read_record(self.spec, RunSpec)
        began, started = time.monotonic(), datetime.now(UTC)
        folder = self.output.with_suffix("").resolve()
        try:
            if spec.machine.nodes > 1:
                raise CannotObserve("a training on several hosts cannot be audited")
            open_training_shards(self.data)
            program = own_training(self.spec, self.data, folder)
            answer = Audit(program, folder, log.info, SECONDS).run()
        except (CannotObserve, SideEnded, TooLarge, ValueError) as error:
            answer = Answer(spec.variant, "failed", str(error))
            killed = isinstance(error, CannotObserve) and error.killed
            # Not final: a damaged file, a killed process, a full disk.
            if killed or isinstance(error, Refusal) or _OF_SYSTEM.search(str(error)):
                count_failure(self.output)
        answer.command, answer.seconds = spec.variant, time.monotonic() - began
        if answer.status != "failed":  # otherwise the reason names a file there
            shutil.rmtree(folder, ignore_errors=True)
        origin = collect(spec, reproducing_command(self.output), started)
        found = asdict(answer) | {"provenance": origin.model_dump(mode="json")}
        inputs = [self.spec, *shard_manifests(self.data)]
        write_result(self.output, json.dumps(found, indent=1) + "\n", inputs)
        log.info(headline(answer))
        for finding in answer.findings:
            log.info("%s: %s", finding.where, finding.cause)
