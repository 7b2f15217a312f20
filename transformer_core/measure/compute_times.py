"""What one device does in a step while its neighbours work too and nobody talks.

    python -m transformer_core.measure.compute_times --specs ddp/spec.json accum4_sync/spec.json \
        --data results/data/grammar --settings '{"steps": 6}' --output compute.json

Projections rest on these times. All devices of a host work at the same time, as in a run of several
processes, because they share its memory, its power and, as processes on a CPU, its cores.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from schemas.jobs import on_one_host
from schemas.projection import Projecting
from schemas.results import ComputeRecord, ComputeTimes
from schemas.study import RunSpec
from transformer_core.data.files import write_text
from transformer_core.measure.outcome import clear_outcomes
from transformer_core.measure.progress import log, log_to
from transformer_core.measure.provenance import collect
from transformer_core.measure.run import attempt, exclusive, reproducing_command

WORKER = "transformer_core.measure.compute_worker"


def different_work(specs: Sequence[RunSpec]) -> Iterator[RunSpec]:
    """The first spec of each kind of work: how devices talk makes no difference here."""
    seen = set()
    for spec in specs:
        found = work(spec)
        if found not in seen:
            seen.add(found)
            yield spec


def work(spec: RunSpec) -> str:
    """What a device computes in a step of ``spec``; equal for specs that differ in talking only."""
    host = on_one_host(spec).machine
    parts = {
        "model": spec.model.model_dump(mode="json"),
        "batching": spec.batching.model_dump(mode="json"),
        "precision": spec.training.precision.model_dump(mode="json"),
        "optimizer": spec.training.optimizer.model_dump(mode="json"),
        "loss": spec.training.loss.model_dump(mode="json"),
        "micro_batches": spec.training.accumulation.micro_batches,
        "devices": [spec.machine.device, host.devices_per_node, host.threads, spec.world_size],
    }
    return json.dumps(parts, sort_keys=True)


def measure(spec: RunSpec, arguments: argparse.Namespace, folder: Path) -> ComputeTimes:
    """Run the workers of one spec; the times, or how the measurement ended."""
    started = datetime.now(UTC)
    clear_outcomes(folder)
    result = folder / "times.json"
    result.unlink(missing_ok=True)
    log.info("compute times: %s", spec.variant)
    (folder / "spec.json").write_text(on_one_host(spec).canonical_json())
    options = [f"--spec={folder / 'spec.json'}", f"--data={arguments.data}", f"--output={folder}"]
    # Its share of a global batch is that of the whole run, whose hosts may be several.
    options += [f"--shares={spec.world_size}", f"--settings={arguments.settings}"]
    options += [f"--command={arguments.command}"]
    outcome = attempt(on_one_host(spec), WORKER, options, result)
    if outcome is None:
        return ComputeTimes.model_validate_json(result.read_text())
    log.info("%s: %s, %s", spec.variant, outcome["status"], outcome["reason"])
    times = ("forward", "backward", "update", "other")
    return ComputeTimes.model_validate(
        {
            "variant": spec.variant,
            "status": outcome["status"],
            "reason": outcome["reason"],
            "micro_batches": spec.training.accumulation.micro_batches,
            **{f"{name}_seconds": None for name in times},
            "gradients": [],
            "source_tokens": None,
            "target_tokens": None,
            "vocabulary": None,
            "topology": None,
            "provenance": collect(spec, arguments.command, started),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.measure.compute_times",
        description="Time what one device computes in a step, without communication.",
    )
    parser.add_argument(
        "--specs", type=Path, nargs="*", required=True, help="spec.json of each variant"
    )
    parser.add_argument("--data", type=Path, required=True, help="results/data/<corpus>")
    parser.add_argument("--settings", required=True, help="projection of the study, as JSON")
    parser.add_argument("--output", type=Path, required=True, help="file of the record")
    parser.add_argument("--log-file", type=Path, help="file for plain log lines")
    arguments = parser.parse_args()
    Projecting.model_validate_json(arguments.settings)
    arguments.command = reproducing_command(arguments.output)
    log_to(arguments.log_file)
    specs = [RunSpec.model_validate_json(file.read_text()) for file in arguments.specs]
    output: Path = arguments.output
    with exclusive(output.with_suffix("")), tempfile.TemporaryDirectory() as folder:
        times = [measure(spec, arguments, Path(folder)) for spec in different_work(specs)]
    write_text(output, ComputeRecord(times=times).model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    main()
