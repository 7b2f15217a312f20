"""Times a device's step while the host's other devices compute too, without communication.

Projections are based on these times. All devices of a host work at the same time, as in a run of
several processes, because they share its memory, its power and, as processes on a CPU, its cores.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from schemas.config.measurement import Projecting
from schemas.config.run_spec import RunSpec
from schemas.results import ComputeRecord, ComputeTimes
from transformer_core.common.digests import write_result
from transformer_core.common.endings import reproducing_command
from transformer_core.common.folder_locks import workplace
from transformer_core.common.progress import log
from transformer_core.common.records import read_record
from transformer_core.machine.provenance import collect
from transformer_core.run.job import Job
from transformer_core.run.order import TrainingOrder
from transformer_core.run.supervisor import attempt
from transformer_core.study.reservations import on_one_host, work_of_a_device


def different_work(specs: Sequence[RunSpec]) -> Iterable[RunSpec]:
    """The first spec of each kind of computation, regardless of how devices communicate."""
    first: dict[str, RunSpec] = {}
    for spec in specs:
        first.setdefault(work_of_a_device(spec), spec)
    return first.values()


RESULT = "times.json"


class ComputeOrder(TrainingOrder):
    """Order to time the parts of some steps, in parallel with the other devices of this host."""

    work = "transformer_core.measure.compute_worker"

    shares: int
    """Devices of the whole run, on all its hosts: a worker gets its share of a global batch."""
    settings: Projecting  # how many steps

    @property
    def title(self) -> str:
        return f"{self.spec.variant}, compute times"


def measure(order: ComputeOrder, target: Path) -> ComputeTimes:
    """Runs the workers of one spec for the record ``target``; returns the times, or how they
    ended."""
    started = datetime.now(UTC)
    log.info("compute times: %s", order.spec.variant)
    result = order.output / RESULT
    outcome = attempt(order, result, target)
    if outcome is None:
        return read_record(result, ComputeTimes)
    return outcome.result(
        ComputeTimes,
        variant=order.spec.variant,
        micro_batches=order.spec.training.accumulation.micro_batches,
        provenance=collect(order.spec, order.command, started),
    )


class ComputeTimesJob(Job):
    """Times the computation of one device in a step, without communication."""

    kind = "compute_times"

    specs: list[Path] = Field(default=[])
    """spec.json of each variant on several devices."""
    data: Path
    """results/data/<corpus>."""
    settings: Projecting
    """The projection of the study."""
    output: Path
    """File of the record."""

    def run(self, log_file: Path | None) -> None:
        specs = [read_record(file, RunSpec) for file in self.specs]
        output, folder = self.output, self.output.with_suffix("")
        with workplace(folder):
            times = [
                measure(
                    ComputeOrder(
                        spec=on_one_host(spec),
                        data=self.data,
                        output=folder,
                        command=reproducing_command(output),
                        log_file=log_file,
                        shares=spec.world_size,
                        settings=self.settings,
                    ),
                    output,
                )
                for spec in different_work(specs)
            ]
        write_result(output, ComputeRecord(times=times).model_dump_json(indent=1) + "\n")
