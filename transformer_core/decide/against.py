"""Compares these results with earlier ones, or with those of another machine.

The two sets were measured at different times, perhaps on different machines. Throughputs are
therefore compared only on the same kind of device, and the ends of both intervals are combined to
the widest: nothing cancels. Speed-ups compare better, because each was measured side by side with
its own baseline.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.errors import ConfigError, ConfigProblem
from schemas.results import (
    Against,
    Change,
    Comparison,
    Interval,
    Lost,
    Origin,
    Quantity,
    Recommendation,
)
from transformer_core.common.digests import write_result
from transformer_core.common.job import Job
from transformer_core.common.percent import percent
from transformer_core.common.records import read_record
from transformer_core.decide.intervals import exact, product, quotient
from transformer_core.decide.study_results import StudyResults, listed, throughputs
from transformer_core.decide.verdicts import verdict_of
from transformer_core.study.ownership import check_results

MEMORY_RESOLUTION = 0.05  # peak memory of single runs that differs by less is considered equal


class Side(StudyResults):
    """One of the two sets of results. Variants may be missing, and records may have fields of an
    earlier version that have been removed since."""

    extra = "ignore"
    all_comparisons = listed("comparisons.json", Comparison)

    @cached_property
    def specs(self) -> dict[str, RunSpec]:  # type: ignore[override]
        """Without unknown fields: a setting that is gone may have changed the training."""
        names = self.study.variants
        return {
            name: read_record(self.folder / f"runs/{name}/spec.json", RunSpec) for name in names
        }

    @cached_property
    def study(self) -> Study:  # type: ignore[override]
        """The study with only the variants that have results."""
        study = self._read("study.json", Study)
        there = [n for n in study.variants if (self.folder / f"runs/{n}/spec.json").is_file()]
        return study.model_copy(update={"variants": there})

    @cached_property
    def verdicts(self) -> dict[str, str]:
        """The verdicts on claims; empty if there are no claims."""
        there = (self.folder / "claims.json").is_file()
        return {claim.claim: claim.verdict for claim in self.claims} if there else {}

    @cached_property
    def rates(self) -> dict[str, Interval]:
        """Throughputs from all sessions of the baseline; empty if any record is missing."""
        there = self.comparisons
        records = [comparison.record for comparison in there.values()]
        if not all(record and (self.folder / record).is_file() for record in records):
            return {}
        base = throughputs(self).get(self.study.baseline)
        if base is None:
            return {}
        return {self.study.baseline: base} | {
            name: product(base, ratio).model_copy(update={"samples": ratio.samples})
            for name, comparison in there.items()
            if (ratio := comparison.speedup) is not None
        }

    def origin(self) -> Origin:
        there = (self.folder / "summary.json").is_file()
        # What its own page recommends, which may be a variant faster than what the search found.
        answer = self._read("summary.json", Recommendation) if there else None
        searched = answer if answer and answer.status != "not_searched" else None
        repeats = [repeat for result in self.ordered for repeat in result.repeats]
        commits = {repeat.provenance.commit for repeat in repeats}
        return Origin(
            folder=str(self.folder),
            study=self.study.name,
            commit=commits.pop() if len(commits) == 1 else None,
            device=self.devices,
            packages=repeats[0].provenance.packages if repeats else {},
            recommended=searched.recommended if searched else None,
            speedup=searched.speedup if searched else None,
        )


def read_side(folder: Path) -> Side:
    """The results in ``folder``; ConfigError if there are none."""
    check_results(folder)
    return Side(folder)


def against(here: Side, there: Side) -> Against:
    """The changes from ``there`` to ``here``, for every variant with the same run spec."""
    shared = [name for name in here.variants if name in there.variants]
    same = [name for name in shared if here.specs[name] == there.specs[name]]
    same_device = here.devices == there.devices
    return Against(
        here=here.origin(),
        there=there.origin(),
        same_device=same_device,
        throughput_from="turns" if here.rates and there.rates else "runs",
        changes=[c for name in same for c in _changes(here, there, name, same, same_device)],
        other_specs=[name for name in shared if name not in same],
        only_here=[name for name in here.variants if name not in there.variants],
        only_there=[name for name in there.variants if name not in here.variants],
        statuses=_lost(*({n: s.variants[n].status for n in same} for s in (here, there))),
        certificates=_lost(*({n: s.certificates[n].status for n in same} for s in (here, there))),
        claims=_lost(here.verdicts, there.verdicts),
    )


def _changes(
    here: Side, there: Side, name: str, same: Collection[str], same_device: bool
) -> Iterator[Change]:
    """The changes of one of the variants with the ``same`` run spec on both sides."""
    margin, baseline = here.study.comparison.margin, here.study.baseline
    # Speed-ups over different baselines have nothing to do with one another.
    if baseline == there.study.baseline != name and baseline in same:
        ours, theirs = (
            side.comparisons[name].speedup if name in side.comparisons else None
            for side in (here, there)
        )
        yield _change(name, "speedup", ours, theirs, margin)
    turns = bool(here.rates and there.rates)
    ours, theirs = (
        side.rates.get(name) if turns else side.variants[name].tokens_per_second
        for side in (here, there)
    )
    change = _change(name, "throughput", ours, theirs, margin)
    if not same_device and change.verdict is not None:
        change = change.model_copy(update={"verdict": None, "reason": "measured on another device"})
    yield change
    peaks = [side.variants[name].peak_memory_bytes for side in (here, there)]
    ours, theirs = (exact(peak) if peak else None for peak in peaks)
    least = max(margin, MEMORY_RESOLUTION)
    change = _change(name, "peak_memory", ours, theirs, least)
    coarse = f"peaks of single runs: differences below {percent(least, 0)} count as the same"
    reason = coarse if change.ratio else change.reason
    yield change.model_copy(update={"reason": reason})


def _change(
    name: str,
    quantity: Literal["speedup", "throughput", "peak_memory"],
    here: Interval | None,
    there: Interval | None,
    margin: float,
) -> Change:
    ratio = quotient(here, there) if here and there else None
    missing = [where for where, value in (("here", here), ("there", there)) if value is None]
    kind: Quantity = "throughput" if quantity == "speedup" else quantity
    return Change(
        variant=name,
        quantity=quantity,
        here=here,
        there=there,
        ratio=ratio,
        verdict=verdict_of(kind, ratio, margin) if ratio else None,
        reason=f"not measured {' and '.join(missing)}" if missing else "",
    )


def _lost(here: Mapping[str, str], there: Mapping[str, str]) -> list[Lost]:
    return [
        Lost(variant=name, here=here[name], there=there[name])
        for name in here
        if name in there and here[name] != there[name]
    ]


class AgainstJob(Job):
    """Compares the results of a study with those of another commit or machine."""

    kind = "against"

    here: Path = Path("results")  # folder of these results
    there: Path  # folder of the other results
    output: Path

    def run(self, log_file: Path | None) -> None:
        try:
            found = against(read_side(self.here), read_side(self.there))
        except ConfigError as error:
            raise ConfigError(map(self._with_remedy, error.problems)) from None
        write_result(self.output, found.model_dump_json(indent=1) + "\n")

    def _with_remedy(self, problem: ConfigProblem) -> ConfigProblem:
        """No command of this study makes the files of the other one again."""
        if not Path(problem.file).is_relative_to(self.there):
            return problem
        remedy = (
            "if another version of this project wrote it, make those results again with this version; "
            "if it is damaged or missing, copy the whole folder again"
        )
        return replace(problem, remedy=remedy)
