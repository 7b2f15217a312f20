"""Profiles the user's step, as it is and as recommended: ``python -m
transformer_core.own_training.profiled.job``."""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from schemas.config.own_training import ImportedTask, Technique
from schemas.config.profiling import Profiling
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.errors import ConfigError
from schemas.results.own_training import OwnProfile, OwnProfiles, OwnTrainingResult
from schemas.results.profiles import Breakdown
from transformer_core.common.endings import program, reproducing_command
from transformer_core.common.files import write_text
from transformer_core.common.progress import log_to
from transformer_core.common.records import read_record
from transformer_core.machine.provenance import collect
from transformer_core.observe.profile_order import rank_file
from transformer_core.own_training.order import OwnProfileOrder
from transformer_core.own_training.techniques import plain_spec, with_techniques
from transformer_core.run.folder_locks import exclusive
from transformer_core.run.job_options import add_log_file
from transformer_core.run.statuses import Outcome
from transformer_core.run.supervisor import attempt, end_on_request
from transformer_core.trace.breakdown.profile import breakdown_of_files
from transformer_core.trace.events.arrow import write_events

EVENTS = "events.parquet"


def profiles(study: Study, spec: RunSpec, found: OwnTrainingResult, folder: Path) -> OwnProfiles:
    """Profiles the user's step and the recommended one, below ``folder``."""
    task = study.task
    assert isinstance(task, ImportedTask)
    started, devices = datetime.now(UTC), study.machine.devices_per_node
    command = reproducing_command(folder / "profiles.json")
    shown: list[list[Technique]] = [[]]
    if found.recommended:
        shown.append(found.recommended)
    made = []
    for techniques in shown if found.status == "ok" else []:
        own = plain_spec(spec, task, devices)
        changed = with_techniques(own, devices, techniques) if techniques else own
        made.append(_profile(changed, techniques, folder, command, study.profiling))
    return OwnProfiles(profiles=made, provenance=collect(spec, command, started))


def _profile(
    spec: RunSpec, techniques: Sequence[Technique], folder: Path, command: str, asked: Profiling
) -> OwnProfile:
    name: Literal["own", "recommended"] = "recommended" if techniques else "own"
    output = folder / "profiles" / name
    output.mkdir(parents=True, exist_ok=True)
    order = OwnProfileOrder(
        spec=spec,
        output=output,
        command=command,
        warmup_steps=asked.warmup_steps,
        steps=asked.steps,
    )
    outcome = attempt(order, output / rank_file(0))
    breakdown = None
    if outcome is None:
        try:
            breakdown = _broken_down(output, spec.world_size, name)
        except (ConfigError, OSError) as error:
            outcome = Outcome(status="failed", reason=f"the traces cannot be read: {error}")
    return OwnProfile(
        name=name,
        techniques=list(techniques),
        status=outcome.status if outcome else "ok",
        reason=outcome.reason if outcome else None,
        breakdown=breakdown,
    )


def _broken_down(output: Path, ranks: int, name: str) -> Breakdown:
    names = [json.loads((output / rank_file(rank)).read_text()) for rank in range(ranks)]
    breakdown, events = breakdown_of_files([output / file for file in names], name)
    write_events(output / EVENTS, events)
    return breakdown


@program
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.own_training.profiled.job",
        description="Profile your training step, before and after.",
    )
    parser.add_argument("--study", type=Path, required=True, help="study.json")
    parser.add_argument("--spec", type=Path, required=True, help="spec.json of its baseline")
    parser.add_argument("--results", type=Path, required=True, help="results.json of the search")
    parser.add_argument("--output", type=Path, required=True, help="profiles.json")
    add_log_file(parser)
    given = parser.parse_args()
    log_to(given.log_file)
    end_on_request()
    study, spec = read_record(given.study, Study), read_record(given.spec, RunSpec)
    found = read_record(given.results, OwnTrainingResult)
    folder = given.output.parent
    with exclusive(folder):
        made = profiles(study, spec, found, folder)
        write_text(given.output, made.model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
