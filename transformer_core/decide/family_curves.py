"""Curves over the families of a study, and their knees.

The knee is the smallest value whose throughput is not shown to be below that of the best value:
their intervals overlap. Intervals of comparisons hold for all comparisons of a study at once, so
two that do not overlap show a difference.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from schemas.config.variants import Families, Family, Member
from schemas.results import FamilyCurve, FamilyPoint, Interval, Pair, Quantity, VariantResult
from transformer_core.common.digests import write_result
from transformer_core.common.job import Job
from transformer_core.decide.compare import traffic_effect
from transformer_core.decide.intervals import exact
from transformer_core.decide.study_results import StudyResults, timed_otherwise
from transformer_core.decide.verdicts import ONE_SESSION
from transformer_core.study.compared_pairs import members_in

RATIOS: tuple[Quantity, ...] = ("throughput", "peak_memory", "traffic")
"""Quantities of a comparison that a point shows."""
FEWEST_MEMBERS = 2  # minimum number of members: a single variant makes no curve


def curve(name: str, family: Family, results: StudyResults) -> FamilyCurve:
    """The curve over the members of ``family`` that the study runs with their references."""
    members = members_in(family, results.study)
    points: list[FamilyPoint] = []
    if len(members) >= FEWEST_MEMBERS:
        points = [_point(member, family.reference_of(member), results) for member in members]
    ratios = {
        point.value: point.throughput for point in points if point.throughput and point.counts
    }
    best = max(ratios, key=lambda value: ratios[value].median, default=None)
    level = [
        value
        for value, ratio in ratios.items()
        if best is not None and ratio.high >= ratios[best].low
    ]
    knee = min(level) if len(level) < len(ratios) else None
    return FamilyCurve(
        family=name,
        title=family.title,
        unit=family.unit,
        summary=family.summary,
        scale=family.scale,
        points=points,
        best=best,
        knee=knee,
        note=_note(family, members, list(ratios), best, knee),
    )


def all_reduces_per_step(result: VariantResult) -> float | None:
    """All-reduces of gradients per optimizer step; null if no strategy counts them."""
    first = result.repeats[0]
    count = (first.communication or {}).get("all_reduces")
    if result.status != "ok" or not first.counted_steps or count is None:
        return None
    return count / first.counted_steps


def _point(member: Member, reference: str | None, results: StudyResults) -> FamilyPoint:
    assert reference is not None, "the families file was checked"
    result = results.variants[member.variant]
    ratios: dict[str, Interval | None] = dict.fromkeys(RATIOS)
    verdict = None
    reason = ""
    if result.status != "ok":
        reason = f"ended {result.status}: {result.reason or 'no reason was given'}"
    elif member.variant == reference:
        ratios = {
            "throughput": exact(1.0),
            "peak_memory": exact(1.0) if result.peak_memory_bytes else None,
            "traffic": traffic_effect(result, result).ratio,
        }
    elif comparison := results.by_pair.get(Pair(member.variant, reference)):
        effect = comparison.effect("throughput")
        ratios, verdict = {name: comparison.effect(name).ratio for name in RATIOS}, effect.verdict
        reason = effect.reason if effect.ratio is None or effect.reason == ONE_SESSION else ""
        if not reason and timed_otherwise(results, comparison):
            reason = f"it or {reference} was timed differently than certified"
    else:
        reason = f"was not compared with {reference}"
    for name, its in ((member.variant, ""), (reference, f"{reference} ")):
        status = results.certificates[name].status
        if not reason and status not in ("equivalent", "different"):
            reason = f"{its}has no certificate that it trains the same model ({status})"
    return FamilyPoint(
        value=member.value,
        variant=member.variant,
        reference=reference,
        **ratios,
        all_reduces=all_reduces_per_step(result),
        verdict=verdict,
        certificate=results.certificates[member.variant].status,
        counts=not reason,
        reason=reason,
    )


def _note(
    family: Family,
    members: Sequence[Member],
    values: Sequence[float],
    best: float | None,
    knee: float | None,
) -> str:
    """Describes the curve over the ``values`` that could be compared."""
    if len(members) < FEWEST_MEMBERS:
        missing = ", ".join(m.variant for m in family.members if m not in members)
        runs = f"only {members[0].variant}" if members else "none"
        return (
            f"The study runs {runs} of this family together with its reference; "
            f"a curve needs two variants: add {missing}"
        )
    few = f"only {len(values)} of {len(members)} values could be compared"
    if best is None or len(values) < FEWEST_MEMBERS:
        return few.capitalize()
    rest = f"; {few}" if len(values) < len(members) else ""
    if knee is None:
        return f"No value is shown to be slower than another{rest}"
    place = f"{knee:g} {family.unit}".rstrip()
    if knee != best:
        return f"{place} is the smallest value not shown to be slower than the best, {best:g}{rest}"
    if knee == values[0]:
        return f"{place}, the smallest value, is the best{rest}"
    return f"{place} is the best value, and every smaller one is shown to be slower{rest}"


class FamiliesJob(Job):
    """Curves over variants that differ in one number, and their knees."""

    kind = "families"

    families: Families  # the families by name
    results: Path = Path("results")
    output: Path

    def run(self, log_file: Path | None) -> None:
        results = StudyResults(self.results)
        curves = [curve(name, family, results) for name, family in self.families.items()]
        text = json.dumps([item.model_dump(mode="json") for item in curves], indent=1)
        write_result(self.output, text + "\n")
