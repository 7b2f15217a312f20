"""Translate the test split with a trained model and score it: the ``evaluate`` job.

Like a run it always has a result: BLEU and translations, or a status that says why there are none.
"""

import sys
from pathlib import Path

from schemas.config.parallel import Single
from schemas.config.run_spec import RunSpec
from schemas.errors import ConfigError
from schemas.results import EvaluationResult, Repeat, Status
from transformer_core.common.attempts import count_failure
from transformer_core.common.endings import program
from transformer_core.common.progress import log_to
from transformer_core.common.records import check_together, read_record
from transformer_core.common.reproducing import reproducing_command
from transformer_core.common.seals import write_sealed
from transformer_core.measure.evaluation.order import RESULT, EvaluationOrder
from transformer_core.run.folder_locks import workplace
from transformer_core.run.job_options import job_parser
from transformer_core.run.supervisor import attempt

WORKER = "transformer_core.measure.evaluation.worker"


def not_evaluated(variant: str, status: Status, reason: str | None) -> EvaluationResult:
    """The evaluation of a run that left no model, or one that could not or need not be used."""
    return EvaluationResult(
        variant=variant,
        status=status,
        reason=reason,
        bleu=None,
        chrf=None,
        signature=None,
        pairs=0,
        seconds=None,
        samples=[],
    )


def evaluation(order: EvaluationOrder, run: Repeat, output: Path) -> EvaluationResult:
    """What the worker found, or why there is nothing."""
    if run.status != "ok":
        return not_evaluated(run.variant, run.status, run.reason)
    if order.spec.evaluation.max_pairs == 0:
        return not_evaluated(run.variant, "ok", None)
    outcome = attempt(order, WORKER, order.output / RESULT)
    if outcome is None:
        return read_record(order.output / RESULT, EvaluationResult)
    if outcome.again:
        count_failure(output)
    return not_evaluated(run.variant, outcome.status, outcome.reason)


def alone(spec: RunSpec) -> RunSpec:
    """``spec`` in one process on one device, with the cores that the job was given."""
    one = {"nodes": 1, "devices_per_node": 1, "link": None, "threads": 0}
    machine = spec.machine.model_copy(update=one)
    return spec.model_copy(update={"parallel": Single(), "machine": machine})


@program
def main() -> int:
    parser = job_parser(
        "transformer_core.measure.evaluation.job",
        "Translate the test split with a trained model and score it.",
        "evaluation.json to write",
    )
    parser.add_argument("--run", type=Path, required=True, help="metrics.json of the repeat")
    parser.add_argument("--weights", type=Path, required=True, help="its model.safetensors")
    given = parser.parse_args()
    log_to(given.log_file)
    manifest = given.data / "shards/test/manifest.json"
    made_from = [given.spec, given.run, given.weights, manifest, given.data / "tokenizer.json"]
    output: Path = given.output
    try:
        check_together(made_from)
        run = read_record(given.run, Repeat)
        order = EvaluationOrder(
            spec=alone(read_record(given.spec, RunSpec)),
            data=given.data,
            output=output.with_suffix(""),
            command=reproducing_command(output),
            log_file=given.log_file,
            weights=given.weights,
        )
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    with workplace(order.output):
        found = evaluation(order, run, output)
        write_sealed(output, found.model_dump_json(indent=2) + "\n", made_from)
    return 0


if __name__ == "__main__":
    sys.exit(main())
