"""What the numbers support in a few sentences, chosen here and worded in the template."""

from dataclasses import dataclass
from typing import Any

from schemas.results import Certificate, Comparison, VariantResult
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit.drawing import Drawing, RatioRow, left_out, ratio_points
from transformer_core.report.kit.language import say


@dataclass(frozen=True)
class Summary:
    """The variants, sorted by what can be said of their throughput.

    Only variants that train the same model, against a baseline that does, are faster or slower, and
    only if the verdict says so.
    """

    ok: int
    faster: list[Comparison]
    """Verdict FASTER; largest ratio first, likewise below."""
    slower: list[Comparison]
    """Verdict SLOWER."""
    same: list[Comparison]
    """Verdict SAME: no difference that matters."""
    undecided: list[Comparison]
    """Verdict UNDECIDED: the interval is too wide for any of the others."""
    uncounted: list[Comparison]
    """Timed, but without a certificate on both sides: no speed-up of the same training."""
    not_equivalent: list[Certificate]
    """Meant to train the same model, and shown not to."""
    ended_otherwise: list[VariantResult]


def summarise(results: StudyResults) -> Summary:
    """Sort the comparisons with the baseline."""
    compared = sorted(
        (item for item in results.comparisons.values() if item.speedup is not None),
        key=lambda item: -item.speedup.median if item.speedup else 0.0,
    )
    counted = [item for item in compared if item.counts]
    said = {
        verdict: [item for item in counted if item.verdict == verdict]
        for verdict in ("FASTER", "SLOWER", "SAME", "UNDECIDED")
    }
    return Summary(
        ok=len(results.variants) - len(results.ended_otherwise),
        faster=said["FASTER"],
        slower=said["SLOWER"],
        same=said["SAME"],
        undecided=said["UNDECIDED"],
        uncounted=[item for item in compared if not item.counts],
        not_equivalent=[
            item for item in results.certificates.values() if item.status == "not_equivalent"
        ],
        ended_otherwise=results.ended_otherwise,
    )


def context(results: StudyResults) -> dict[str, Any]:
    """The sentences' content."""
    return {"summary": summarise(results)}


def draw_speedup(results: StudyResults) -> Drawing:
    """The ratios with their intervals, against 1 and the margin of what is the same."""
    baseline, margin = results.study.baseline, results.study.comparison.margin
    shown = [comparison for comparison in results.comparisons.values() if comparison.speedup]
    points = [
        RatioRow(
            comparison.variant,
            comparison.speedup,
            str(comparison.verdict) if comparison.counts else "not counted",
            clear=comparison.counts and comparison.verdict in ("FASTER", "SLOWER"),
        )
        for comparison in shown
        if comparison.speedup
    ]
    figure = ratio_points(points, baseline, margin)
    names = [comparison.variant for comparison in shown] + [baseline]
    return Drawing(
        figure,
        say("Speed-up against %(baseline)s", baseline=baseline),
        say(
            "Right of the dashed line is faster. A line is the interval of a ratio; all of them "
            "hold at once. The shaded band is the margin of %(margin)s within which they are the "
            "same. A filled dot is a verdict of FASTER or SLOWER; not counted is what is not the "
            "same training.",
            margin=f"{margin:.1%}",
        )
        + left_out(results, names),
    )
