"""Where the memory of a variant goes: ``python -m transformer_core.measure.anatomy --spec ...``.

A few steps in fresh processes, never the timed run: memory at every milestone, by rank, and what it
is for. Like a timed run it always has a result, with a status that says why there is nothing else.
"""

import argparse
import json
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from schemas.parallel import Ddp, PowerSgdHook
from schemas.results import MemoryResult
from schemas.study import RunSpec
from transformer_core.data.files import write_text
from transformer_core.measure.launch import lends_processes_only
from transformer_core.measure.outcome import clear_outcomes
from transformer_core.measure.progress import log, log_to
from transformer_core.measure.provenance import collect
from transformer_core.measure.run import (
    attempt,
    exclusive,
    reproducing_command,
    run_workers,
    worker_options,
)

WORKER = "transformer_core.measure.anatomy_worker"


def rank_file(rank: int | str) -> str:
    """What a rank leaves beside the result."""
    return f"rank-{rank}.json"


def steps_of(spec: RunSpec) -> int:
    """Steps until a step is like all that follow: DDP makes its buckets anew in the second, the
    optimizer its state in the first, and PowerSGD starts late."""
    parallel = spec.parallel
    if isinstance(parallel, Ddp) and isinstance(parallel.hook, PowerSgdHook):
        return parallel.hook.start_step + 3
    return 3


def measure(spec: RunSpec, workers: argparse.Namespace, result: Path) -> MemoryResult:
    """Run the workers with these options; ``result`` is the file that this will be."""
    started = datetime.now(UTC)
    folder: Path = workers.output
    clear_outcomes(folder)
    for file in folder.glob(rank_file("*")):
        file.unlink()
    outcome = attempt(spec, WORKER, worker_options(workers), folder / rank_file(0))
    record: dict[str, Any] = {
        "variant": spec.variant,
        "steps": workers.steps,
        "provenance": collect(spec, reproducing_command(result), started),
    }
    if outcome is not None:
        log.info("%s, memory: %s, %s", spec.variant, outcome["status"], outcome["reason"])
        record |= {name: outcome[name] for name in ("status", "reason", "traceback")}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--spec", type=Path, required=True, help="spec.json of the variant")
    parser.add_argument("--data", type=Path, required=True, help="results/data/<corpus>")
    parser.add_argument("--steps", type=int, help="training steps (default: as many as it takes)")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--log-file", type=Path, help="file for plain log lines")
    given = parser.parse_args()
    log_to(given.log_file)
    spec = RunSpec.model_validate_json(given.spec.read_text())
    folder: Path = given.output.with_suffix("")
    workers = argparse.Namespace(
        spec=given.spec,
        data=given.data,
        steps=given.steps or steps_of(spec),
        output=folder,
        log_file=given.log_file,
    )
    if lends_processes_only():
        sys.exit(run_workers(spec, WORKER, worker_options(workers)))
    with exclusive(folder):
        result = measure(spec, workers, given.output)
        write_text(given.output, result.model_dump_json(indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
