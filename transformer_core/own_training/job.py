"""Finds out what makes your own training faster: ``python -m
transformer_core.own_training.job``."""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from schemas.config.own_training import ImportedTask
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.errors import ConfigError, ConfigProblem, Unsupported
from schemas.results.own_training import OwnTrainingResult
from transformer_core.common.endings import program, reproducing_command
from transformer_core.common.files import write_text
from transformer_core.common.progress import log_to
from transformer_core.common.records import read_record
from transformer_core.machine.provenance import collect
from transformer_core.own_training.advice.own_report import own_report
from transformer_core.own_training.advice.script_changes import script_changes
from transformer_core.own_training.best_together import OWN, Timing, best_together
from transformer_core.own_training.own_certificate import distance
from transformer_core.own_training.short_trainings import ShortTrainings
from transformer_core.own_training.techniques import plain_spec
from transformer_core.run.folder_locks import exclusive
from transformer_core.run.job_options import add_log_file
from transformer_core.run.launcher import uses_gpus
from transformer_core.run.statuses import Outcome
from transformer_core.run.supervisor import end_on_request


def find_out(
    study: Study, spec: RunSpec, folder: Path, command: str, code: str
) -> OwnTrainingResult:
    """Certify, time and combine what the study's task names, below ``folder``."""
    task = study.task
    assert isinstance(task, ImportedTask)
    started = datetime.now(UTC)
    devices = study.machine.devices_per_node
    made: dict[str, Any] = {"factory": task.factory, "provenance": collect(spec, command, started)}
    try:
        own = plain_spec(spec, task, devices)
    except Unsupported as error:
        return _nothing(made, Outcome.of(error))
    short = ShortTrainings(own, devices, folder / "short", command)
    ended = short.begin()
    if ended is not None or short.own is None:
        assert ended is not None
        return _nothing(made, ended)
    timing = Timing(own, devices, study.comparison, folder / "turns", command, code)
    tried, recommended = best_together(task.techniques, short.certified, timing)
    return OwnTrainingResult(
        **made,
        status="ok",
        reason=None,
        facts=short.own.record.facts,
        own_loss=short.own.record.losses[0],
        own_rounding=distance(short.own, short.wide) if short.wide else None,
        wide_reason=short.wide_reason,
        tried=tried,
        recommended=recommended,
        own_peak_memory_bytes=timing.peak_memory(OWN),
    )


def _nothing(made: dict[str, Any], ended: Outcome) -> OwnTrainingResult:
    """The result where the user's own step cannot run."""
    return OwnTrainingResult(
        **made,
        status=ended.status,
        reason=ended.reason,
        facts=None,
        own_loss=[],
        own_rounding=None,
        wide_reason=None,
        tried=[],
        recommended=[],
    )


@program
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.own_training.job",
        description="Find out what makes your own training faster.",
    )
    parser.add_argument("--study", type=Path, required=True, help="study.json")
    parser.add_argument("--spec", type=Path, required=True, help="spec.json of its baseline")
    parser.add_argument("--output", type=Path, required=True, help="results.json")
    parser.add_argument("--code", default="", help="digest of the sources")
    add_log_file(parser)
    given = parser.parse_args()
    log_to(given.log_file)
    end_on_request()
    study, spec = read_record(given.study, Study), read_record(given.spec, RunSpec)
    if not isinstance(study.task, ImportedTask):
        remedy = "take task: {kind: import, factory: ...}"
        problem = ConfigProblem("study", "task.kind", study.task.kind, "is no import", remedy)
        raise ConfigError([problem])
    folder = given.output.parent
    with exclusive(folder):
        command = reproducing_command(given.output)
        result = find_out(study, spec, folder, command, given.code)
        diff, words = "", list[str]()
        if result.facts is not None:
            device = "cuda" if uses_gpus(spec) else "cpu"
            diff, words = script_changes(result.recommended, study.task, result.facts, device)
            result = result.model_copy(update={"words": words})
        write_text(folder / "changes.diff", diff)
        write_text(folder / "report.md", own_report(result, diff, words))
        write_text(given.output, result.model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
