"""Where the memory of a variant goes:
``python -m transformer_core.measure.memory.anatomy.job --spec ...``.

A few steps in fresh processes, never the timed run: memory at every milestone, by rank, and what it
is for. Like a timed run it always has a result, with a status that says why there is nothing else.
"""

import json
import sys
from datetime import UTC, datetime
from typing import Any

from schemas.config.run_spec import RunSpec
from schemas.results import MemoryResult
from transformer_core.common.attempts import count_failure
from transformer_core.common.endings import program
from transformer_core.common.progress import log_to
from transformer_core.common.records import read_record
from transformer_core.common.reproducing import reproducing_command
from transformer_core.common.seals import write_sealed
from transformer_core.machine.provenance import collect
from transformer_core.measure.memory.anatomy.order import AnatomyOrder, rank_file
from transformer_core.run.folder_locks import workplace
from transformer_core.run.job_options import job_parser
from transformer_core.run.supervisor import attempt, lend_processes

WORKER = "transformer_core.measure.memory.anatomy.worker"


def steps_of(spec: RunSpec) -> int:
    """Steps until a step is like all that follow: DDP makes its buckets anew in the second, the
    optimizer its state in the first, and PowerSGD starts late."""
    hook = spec.parallel.message_hook
    return 3 if hook is None else hook.steps_before + 3


def measure(order: AnatomyOrder) -> MemoryResult:
    """Run the workers; what they found, or how they ended."""
    started = datetime.now(UTC)
    spec, folder = order.spec, order.output
    for file in folder.glob(rank_file("*")):
        file.unlink()
    outcome = attempt(order, WORKER, folder / rank_file(0))
    record: dict[str, Any] = {
        "variant": spec.variant,
        "steps": order.steps,
        "provenance": collect(spec, order.command, started),
    }
    if outcome is not None:
        if outcome.again:
            count_failure(folder.with_suffix(".json"))
        record |= outcome.of_a_result
        record |= dict.fromkeys(("topology", "parameters", "decoding"))
        record |= {"mixed_precision": False, "ranks": [], "foreign": []}
        return MemoryResult.model_validate(record)
    found = [json.loads((folder / rank_file(r)).read_text()) for r in range(spec.world_size)]
    ranks = [rank for of_process in found for rank in of_process["ranks"]]
    # Ranks that share a host see the same processes.
    foreign = {(p["device"], p["pid"]): p for of_process in found for p in of_process["foreign"]}
    parts = [rank["anatomy"] for rank in ranks if rank["anatomy"] is not None]
    record |= {name: found[0][name] for name in ("topology", "parameters", "decoding")}
    record |= {"status": "ok", "reason": None, "traceback": None, "ranks": ranks}
    record |= {"mixed_precision": any(part["master_weights_bytes"] for part in parts)}
    return MemoryResult.model_validate(record | {"foreign": list(foreign.values())})


@program
def main() -> None:
    parser = job_parser(
        "transformer_core.measure.memory.anatomy.job",
        "Measure where the memory of a variant goes.",
        "JSON file to write",
    )
    parser.add_argument("--steps", type=int, help="training steps (default: as many as it takes)")
    given = parser.parse_args()
    log_to(given.log_file)
    spec = read_record(given.spec, RunSpec)
    order = AnatomyOrder(
        spec=spec,
        data=given.data,
        output=given.output.with_suffix(""),
        command=reproducing_command(given.output),
        log_file=given.log_file,
        steps=given.steps or steps_of(spec),
    )
    lend_processes(order, WORKER)
    with workplace(order.output):
        result = measure(order)
        write_sealed(given.output, result.model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
