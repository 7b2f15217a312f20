"""How long the baseline and what is recommended take until they translate as well as asked:

    python -m transformer_core.measure.quality.job --spec runs/<baseline>/spec.json \
        --search search.json --goal JSON --data data/<corpus> --output quality.json

A speed-up says how much sooner the same steps are done, a certificate that they are the same steps.
This shows what both come to. It always has a result: where a side fails, it says why.
"""

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from schemas.config.measurement import Comparing
from schemas.config.quality import Quality
from schemas.config.run_spec import RunSpec
from schemas.errors import ConfigError
from schemas.results import SearchResult
from schemas.results.quality import QualityResult
from schemas.results.search import BASELINE, BEST
from transformer_core.common.endings import program
from transformer_core.common.progress import log, log_to
from transformer_core.common.records import check_together, read_record
from transformer_core.common.reproducing import reproducing_command
from transformer_core.common.seals import write_sealed
from transformer_core.measure.quality.race import Runner, for_race, race
from transformer_core.measure.turns.session import Sessions
from transformer_core.measure.turns.sides import Side
from transformer_core.run.coordinator import COORDINATOR, Coordinator
from transformer_core.run.folder_locks import workplace
from transformer_core.run.job_options import job_parser
from transformer_core.run.supervisor import end_on_request

WORKER = "transformer_core.measure.quality.worker"


def time_to_quality(
    baseline: RunSpec, found: SearchResult, goal: Quality, data: Path, folder: Path, command: str
) -> QualityResult:
    """Both trainings, unless the baseline is all that is recommended."""
    if found.status != "found":
        return _result(goal, "not_run", "nothing but the baseline is recommended")
    began = time.monotonic()
    runners = [
        Runner(Side(BASELINE, for_race(baseline, goal), worker=WORKER), [found.baseline]),
        Runner(Side(BEST, for_race(found.spec, goal), worker=WORKER), found.parts),
    ]
    with Coordinator(folder / COORDINATOR, baseline.machine.nodes > 1) as coordinator:
        sessions = Sessions(
            [runner.side for runner in runners],
            Comparing(),
            data,
            folder,
            coordinator,
            command,
            datetime.now(UTC),
            lambda text: log.info("quality: %s", text),
        )
        race(sessions, runners, goal)
    status, reason = _outcome(runners, goal)
    return _result(goal, status, reason, runners, sessions, time.monotonic() - began)


def _outcome(runners: Sequence[Runner], goal: Quality) -> tuple[str, str]:
    """How it ended, and that in a sentence."""
    for runner in runners:
        if runner.outcome.status != "ok":
            return "failed", f"{runner.side.name}: {runner.outcome.reason}"
    away = [runner for runner in runners if not runner.arrived(goal)]
    if not away:
        return "arrived", f"both reach {goal.bleu:g} BLEU"
    best = [max(look.bleu for look in runner.looks) for runner in away if runner.looks]
    said = " and ".join(runner.side.name for runner in away)
    return "not_arrived", (
        f"{said}: {' and '.join(f'{bleu:.1f}' for bleu in best) or 'no'} BLEU after "
        f"{max((r.looks[-1].step for r in away if r.looks), default=0)} steps; more time "
        "(quality.budget) or steps (quality.steps) change that"
    )


def _result(
    goal: Quality,
    status: str,
    reason: str,
    runners: Sequence[Runner] = (),
    sessions: Sessions | None = None,
    seconds: float = 0.0,
) -> QualityResult:
    arrived = [look for runner in runners if (look := runner.arrived(goal))]
    ratio = None
    if len(arrived) == 2:
        baseline, best = (look.seconds for look in arrived)
        ratio = best / baseline
    return QualityResult.model_validate(
        {
            "status": status,
            "reason": reason,
            "bleu": goal.bleu,
            "pairs": goal.max_pairs,
            "sides": [runner.record(goal) for runner in runners],
            "time_ratio": ratio,
            "seconds": seconds,
            "provenance": sessions.provenance if sessions else {},
        }
    )


@program
def main() -> int:
    parser = job_parser(
        "transformer_core.measure.quality.job",
        "Train the baseline and what is recommended until both translate as well as asked.",
        "quality.json to write",
    )
    parser.add_argument("--search", type=Path, required=True, help="search.json")
    parser.add_argument("--goal", required=True, help="quality of the study, as JSON")
    given = parser.parse_args()
    log_to(given.log_file)
    end_on_request()
    output: Path = given.output
    folder = output.with_suffix("")
    splits = [given.data / f"shards/{split}/manifest.json" for split in ("train", "validation")]
    made_from = [given.spec, given.search, given.data / "tokenizer.json", *splits]
    try:
        check_together(made_from)
        goal = Quality.model_validate_json(given.goal)
        baseline = read_record(given.spec, RunSpec)
        found = read_record(given.search, SearchResult)
        with workplace(folder):
            result = time_to_quality(
                baseline, found, goal, given.data, folder, reproducing_command(output)
            )
            write_sealed(output, result.model_dump_json(indent=1) + "\n", made_from)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    log.info("quality: %s", result.reason)
    return 0


if __name__ == "__main__":
    sys.exit(main())
