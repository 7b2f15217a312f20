"""The figure of the race: BLEU over the time of training."""

from matplotlib.figure import Figure

from schemas.results import QualitySide
from schemas.results.search import BASELINE
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import WIDTH, Drawing, legend_below, nothing
from transformer_core.report.kit.palette import BLUE, GREY
from transformer_core.report.kit.said import say

_HEIGHT = 3.0


def quality(results: StudyResults) -> Drawing:
    """How well each of the two trainings translates, over the time that it has trained."""
    figure = Figure(figsize=(WIDTH, _HEIGHT), layout="constrained")
    found = results.quality
    shown = [side for side in found.sides if side.looks] if found else []
    if found is None or not shown:
        nothing(figure)
    else:
        axes = figure.subplots()
        axes.axhline(found.bleu, color=svg.INK, ls="--", lw=1)
        for side in shown:
            seconds = [0.0, *(look.seconds for look in side.looks)]
            bleu = [0.0, *(look.bleu for look in side.looks)]
            color = GREY if side.name == BASELINE else BLUE
            axes.plot(seconds, bleu, "o-", color=color, ms=4, label=_label(side))
        axes.set(xlabel="seconds of training", ylabel="BLEU", ylim=(0, None), xlim=(0, None))
        legend_below(axes, None)
    return Drawing(
        figure,
        say("Quality over time"),
        say(
            "Higher and further left is better. Each dot is a look at how well the model "
            "translates; the dashed line is what was asked for."
        ),
    )


def _label(side: QualitySide) -> str:
    return side.parts[0] if side.name == BASELINE else "recommended"
