"""How long the baseline and what is recommended take until they translate as well as asked.

A speed-up says how much sooner the same steps are done, a certificate that they are the same steps.
This shows what both come to. It always has a result: where a side fails, it says why.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from schemas.config.measurement import Comparing
from schemas.config.quality import Quality
from schemas.config.run_spec import RunSpec
from schemas.results import SearchResult
from schemas.results.quality import QualityResult
from schemas.results.search import BASELINE, BEST
from transformer_core.common.endings import reproducing_command
from transformer_core.common.progress import log
from transformer_core.common.records import check_together, read_record
from transformer_core.common.seals import write_sealed
from transformer_core.measure.quality.race import Runner, for_race, race
from transformer_core.measure.turns.order import RaceOrder
from transformer_core.measure.turns.session import Sessions
from transformer_core.measure.turns.sides import Side
from transformer_core.run.coordinator import COORDINATOR, Coordinator
from transformer_core.run.folder_locks import workplace
from transformer_core.run.job import TrainingJob
from transformer_core.run.supervisor import end_on_request


def time_to_quality(
    baseline: RunSpec, found: SearchResult, goal: Quality, data: Path, folder: Path, command: str
) -> QualityResult:
    """Both trainings, unless the baseline is all that is recommended."""
    if found.status != "found":
        return _result(goal, "not_run", "nothing but the baseline is recommended")
    began = time.monotonic()
    runners = [
        Runner(Side(BASELINE, for_race(baseline, goal), order=RaceOrder), [found.baseline]),
        Runner(Side(BEST, for_race(found.spec, goal), order=RaceOrder), found.parts),
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


class QualityJob(TrainingJob):
    """To train the baseline and what is recommended until both translate as well as asked."""

    kind = "quality"

    search: Path
    """search.json."""
    goal: Quality
    """quality of the study."""

    def run(self, log_file: Path | None) -> None:
        end_on_request()
        splits = [self.data / f"shards/{split}/manifest.json" for split in ("train", "validation")]
        made_from = [self.spec, self.search, self.data / "tokenizer.json", *splits]
        check_together(made_from)
        baseline = read_record(self.spec, RunSpec)
        found = read_record(self.search, SearchResult)
        folder, command = self.output.with_suffix(""), reproducing_command(self.output)
        with workplace(folder):
            result = time_to_quality(baseline, found, self.goal, self.data, folder, command)
            write_sealed(self.output, result.model_dump_json(indent=1) + "\n", made_from)
        log.info("quality: %s", result.reason)
