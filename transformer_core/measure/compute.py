"""Times the step of one device while its neighbours compute too and nobody communicates.

Projections rest on these times. All devices of a host work at the same time, as in a run of several
processes, because they share its memory, its power and, as processes on a CPU, its cores.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from schemas.config.projection import Projecting
from schemas.config.run_spec import RunSpec
from schemas.results import ComputeRecord, ComputeTimes
from transformer_core.common.endings import count_failure, reproducing_command
from transformer_core.common.progress import log
from transformer_core.common.records import read_record
from transformer_core.common.seals import write_sealed
from transformer_core.machine.provenance import collect
from transformer_core.run.folder_locks import exclusive
from transformer_core.run.job import Job
from transformer_core.run.order import TrainingOrder
from transformer_core.run.supervisor import attempt
from transformer_core.study.reservations import on_one_host


def different_work(specs: Sequence[RunSpec]) -> Iterator[RunSpec]:
    """The first spec of each kind of work, regardless of how devices communicate."""
    seen = set()
    for spec in specs:
        found = work(spec)
        if found not in seen:
            seen.add(found)
            yield spec


def work(spec: RunSpec) -> str:
    """The part of ``spec`` that a device computes in a step; equal for specs that differ only in
    communication."""
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


class ComputeOrder(TrainingOrder):
    """Order to time the parts of some steps, in parallel with the other devices of this host."""

    kind = "compute"
    work = "transformer_core.measure.compute_worker"

    shares: int
    """Devices of the whole run, whose hosts may be several: a worker gets its share of a global
    batch."""
    settings: Projecting
    """How many steps."""

    @property
    def title(self) -> str:
        return f"{self.spec.variant}, compute times"


def measure(order: ComputeOrder, target: Path) -> ComputeTimes:
    """Runs the workers of one spec for the record ``target``; returns the times, or how the run
    ended."""
    started = datetime.now(UTC)
    log.info("compute times: %s", order.spec.variant)
    result = order.output / RESULT
    outcome = attempt(order, result)
    if outcome is None:
        return read_record(result, ComputeTimes)
    if outcome.again:
        count_failure(target)
    return ComputeTimes(
        variant=order.spec.variant,
        status=outcome.status,
        reason=outcome.reason,
        micro_batches=order.spec.training.accumulation.micro_batches,
        forward_seconds=None,
        backward_seconds=None,
        update_seconds=None,
        other_seconds=None,
        gradients=[],
        source_tokens=None,
        target_tokens=None,
        vocabulary=None,
        topology=None,
        provenance=collect(order.spec, order.command, started),
    )


class ComputeTimesJob(Job):
    """Times the computation of one device in a step, without communication."""

    kind = "compute_times"

    specs: list[Path]
    """spec.json of each variant."""
    data: Path
    """results/data/<corpus>."""
    settings: Projecting
    """The projection of the study."""
    output: Path
    """File of the record."""

    def run(self, log_file: Path | None) -> None:
        specs = [read_record(file, RunSpec) for file in self.specs]
        output = self.output
        with exclusive(output.with_suffix("")), tempfile.TemporaryDirectory() as folder:
            times = [
                measure(
                    ComputeOrder(
                        spec=on_one_host(spec),
                        data=self.data,
                        output=Path(folder),
                        command=reproducing_command(output),
                        log_file=log_file,
                        shares=spec.world_size,
                        settings=self.settings,
                    ),
                    output,
                )
                for spec in different_work(specs)
            ]
        write_sealed(output, ComputeRecord(times=times).model_dump_json(indent=1) + "\n")


RESULT = "times.json"
