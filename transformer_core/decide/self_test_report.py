"""Checks the comparison protocol against a known truth.

The sessions are divided into comparisons, and these into studies with as many comparisons as the
actual study: intervals are computed for each of these studies separately, as for a real one.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from pathlib import Path
from statistics import median

from scipy import stats

from schemas.results import Interval, LogRatio, Pair
from schemas.results.comparisons import SelfTestKind, SelfTestReport, SelfTestRun, Share
from transformer_core.common.digests import write_result
from transformer_core.common.job import Job
from transformer_core.common.percent import percent
from transformer_core.common.progress import log
from transformer_core.common.records import read_record
from transformer_core.decide.intervals import between_sessions, simultaneous_ratios
from transformer_core.decide.verdicts import judge

FALSE_ALARMS = 0.01
"""Maximum fraction of equal sides called different, but always one. Intervals that hold for 16
comparisons at once with 95 % call 0.3 % different."""
DETECTED = ((0.10, 1.0), (0.05, 0.9))
"""Planted slow-downs, and the minimum fraction that must be found."""


def report(run: SelfTestRun, together: int, margin: float) -> SelfTestReport:
    """Results of the comparisons of each kind, ``together`` at a time."""
    groups = [
        run.sessions[first : first + run.sessions_each]
        for first in range(0, len(run.sessions), run.sessions_each)
    ]
    planted = {side.name: side.planted for side in run.sessions[0].sides}
    names = [name for name in planted if name != run.reference]
    ratios = [
        {name: [session.ratio(Pair(name, run.reference)) for session in group] for name in names}
        for group in groups
    ]
    size = max(1, round(together / len(names)))
    intervals: dict[float, list[Interval]] = {planted[name]: [] for name in names}
    for part in _parts(ratios, size):
        flat = [(name, group[name]) for group in part for name in names]
        found = simultaneous_ratios([sessions for _, sessions in flat])
        for (name, _), interval in zip(flat, found, strict=True):
            intervals[planted[name]].append(interval)
    kinds = [_kind(*each, margin, run.sessions_each) for each in sorted(intervals.items())]
    everything = [group[name] for group in ratios for name in names]
    cpus = run.provenance.hardware.logical_cpus
    shares = [share for one in run.sessions if (share := one.foreign_share(cpus)) is not None]
    failed = [kind.required for kind in kinds if not kind.holds]
    return SelfTestReport(
        holds=not failed,
        reason=f"not shown: {'; '.join(failed)}" if failed else "all requirements hold",
        kinds=kinds,
        error_within=median(ratio.error for sessions in everything for ratio in sessions),
        deviation_between=sqrt(between_sessions(everything)[run.reference].variance),
        foreign_share=median(shares) if shares else None,
        margin=margin,
        sessions_each=run.sessions_each,
        comparing=run.comparing,
        seconds=run.seconds,
        provenance=run.provenance,
    )


def _parts(
    groups: Sequence[dict[str, list[LogRatio]]], size: int
) -> list[Sequence[dict[str, list[LogRatio]]]]:
    """The groups in parts of ``size``; any remainder goes to the last."""
    cuts = [*range(0, max(1, len(groups) - size + 1), size), len(groups)]
    return [groups[start:end] for start, end in pairwise(cuts)]


def _kind(planted: float, found: Sequence[Interval], margin: float, sessions: int) -> SelfTestKind:
    expected = 1 / (1 + planted)
    effects = [judge("throughput", interval, margin, sessions) for interval in found]
    verdicts = [effect.verdict for effect in effects if effect.verdict]
    different = [verdict in ("FASTER", "SLOWER") for verdict in verdicts]
    detected = verdicts.count("SLOWER") / len(verdicts)
    least = next((least for share, least in DETECTED if planted >= share), 0.0)
    if not planted:
        most = max(1, int(FALSE_ALARMS * len(verdicts)))
        required = f"at most {most} of {len(verdicts)} equal sides called different"
        holds = sum(different) <= most
    else:
        required = (
            f"at least {percent(least, 0)} of {percent(planted, 0)} called SLOWER" if least else ""
        )
        holds = detected >= least
    beyond = expected < 1 / (1 + margin)
    false = {"FASTER", "SLOWER"} if not planted else {"FASTER"} | ({"SAME"} if beyond else set())
    return SelfTestKind(
        planted=planted,
        expected=expected,
        ratio=median(interval.median for interval in found),
        verdicts=dict(Counter(verdicts)),
        covered=_share([interval.low <= expected <= interval.high for interval in found]),
        called_different=_share(different),
        wrong=sum(verdict in false for verdict in verdicts),
        required=required,
        holds=holds,
    )


def _share(found: Sequence[bool]) -> Share:
    interval = stats.binomtest(sum(found), len(found)).proportion_ci(0.95, "exact")
    return Share(
        count=sum(found), total=len(found), low=float(interval.low), high=float(interval.high)
    )


class SelfTestReportJob(Job):
    """Reports how the comparison protocol judges planted, known differences."""

    kind = "self_test_report"

    sessions: Path  # sessions.json of the self-test
    together: int  # comparisons of a study, for which intervals are corrected
    margin: float  # ratios up to 1 + margin are the same
    output: Path

    def run(self, log_file: Path | None) -> None:
        found = report(read_record(self.sessions, SelfTestRun), self.together, self.margin)
        for kind in found.kinds:
            verdicts = sorted(kind.verdicts.items())
            said = ", ".join(f"{count} {verdict}" for verdict, count in verdicts)
            log.info("planted %.0f%%: ratio %.3f; %s", 100 * kind.planted, kind.ratio, said)
        log.info("%s", found.reason)
        write_result(self.output, found.model_dump_json(indent=1) + "\n")
