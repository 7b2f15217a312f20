"""Whether a quantity rises or falls over the values of a family."""

from itertools import pairwise

from schemas.config.claims import FamilyQuantity, TrendTest
from schemas.results import FamilyPoint, Interval
from transformer_core.decide.claims.findings import SIGNS, Findings, Judgement
from transformer_core.decide.comparisons.family_curves import FEWEST_MEMBERS
from transformer_core.decide.statistics.interval_arithmetic import exact, quotient
from transformer_core.decide.statistics.verdicts import verdict_of


def trend(test: TrendTest, findings: Findings) -> Judgement:
    """Whether the curve of a family goes the way that the test claims."""
    curve = findings.curves[test.family]
    values = [
        (point.value, size)
        for point in curve.points
        if (size := _quantity(point, test.quantity)) is not None
    ]
    if len(values) < FEWEST_MEMBERS:
        few = f"only {len(values)} of {len(curve.points)} values have this quantity"
        return Judgement("not_testable", few if curve.points else curve.note)
    try:
        return _follow(test, values, findings.margin)
    except ValueError as error:
        return Judgement("not_testable", str(error))


def _follow(test: TrendTest, values: list[tuple[float, Interval]], margin: float) -> Judgement:
    """Whether sizes go the way of the test over their values; ValueError if one is 0."""
    if test.until_best:
        values = _until_best(values)
    if test.quantity == "all_reduces":
        margin = 0.0  # counted, so any difference is one
    wanted = 1 if test.direction == "rises" else -1
    whole = quotient(values[-1][1], values[0][1])
    for (start, before), (end, after) in pairwise(values):
        if _side(step := quotient(after, before), margin) == -wanted:
            turn = "falls" if wanted == 1 else "rises"
            reason = f"{turn} from {start:g} to {end:g} ({_show(step)})"
            return Judgement("contradicted", reason, whole)
    ends = f"from {values[0][0]:g} to {values[-1][0]:g}"
    side = _side(whole, margin)
    if side is None:
        return Judgement("undecided", f"no difference is shown {ends}", whole)
    if side != wanted:
        return Judgement("contradicted", f"stays level {ends}", whole)
    return Judgement("holds", f"{test.direction} {ends}", whole)


def _side(ratio: Interval, margin: float) -> int | None:
    """1 for a ratio above 1, -1 below, 0 for the same within ``margin``, null if undecided."""
    return SIGNS.get(verdict_of("throughput", ratio, margin))


def _until_best(values: list[tuple[float, Interval]]) -> list[tuple[float, Interval]]:
    """The values up to the best one; all of them if the first is the best."""
    best = max(range(len(values)), key=lambda index: values[index][1].median)
    return values[: best + 1] if best else values


def _quantity(point: FamilyPoint, quantity: FamilyQuantity) -> Interval | None:
    if not point.counts:
        return None
    match quantity:
        case "throughput":
            return point.throughput
        case "peak_memory":
            return point.peak_memory
        case "traffic":
            return point.traffic
        case "all_reduces":
            return None if point.all_reduces is None else exact(point.all_reduces)


def _show(interval: Interval) -> str:
    return f"{interval.median:.3g}, {interval.low:.3g} to {interval.high:.3g}"
