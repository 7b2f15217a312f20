"""The time that the baseline and the recommendation need to translate well."""

from itertools import cycle
from typing import Any

from matplotlib.figure import Figure

from schemas.results import QualitySide
from schemas.results.search import BASELINE, BEST
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import (
    WIDTH,
    Drawing,
    captioned,
    legend_below,
    nothing,
)
from transformer_core.report.kit.palette import REFERENCE, VARIANT


def context(results: StudyResults) -> dict[str, Any]:
    """The result, and its sides under the names that the page gives them."""
    found = results.quality
    return {"quality": found, "sides": [(name_of(s), s) for s in found.sides] if found else []}


def name_of(side: QualitySide) -> str:
    """The techniques of a side."""
    return side.parts[0] if side.name == BASELINE else " + ".join(side.parts)


_HEIGHT = 3.0


def draw_quality(results: StudyResults) -> Drawing:
    """How well each training translates, over the time that it has trained."""
    figure = Figure(figsize=(WIDTH, _HEIGHT), layout="constrained")
    found = results.quality
    shown = [side for side in found.sides if side.looks] if found else []
    if found is None or not shown:
        nothing(figure)
    else:
        axes = figure.subplots()
        axes.axhline(found.bleu, color=svg.INK, ls="--", lw=1)
        for side, line in zip(shown, cycle(("o-", "o-", "s--", "^:", "v-.")), strict=False):
            seconds = [0.0, *(look.seconds for look in side.looks)]
            bleu = [0.0, *(look.bleu for look in side.looks)]
            color = REFERENCE if side.name == BASELINE else VARIANT
            axes.plot(seconds, bleu, line, color=color, ms=4, label=_label(side))
        axes.set(xlabel="seconds of training", ylabel="BLEU", ylim=(0, None), xlim=(0, None))
        legend_below(axes, None)
    return captioned("quality", figure)


def _label(side: QualitySide) -> str:
    return "recommended" if side.name == BEST else side.parts[0]
