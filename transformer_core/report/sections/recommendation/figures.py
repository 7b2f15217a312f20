"""The figure of the recommended combination."""

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit.drawing import Drawing
from transformer_core.report.kit.palette import BLUE, GREY, ORANGE
from transformer_core.report.kit.ratio_rows import RatioRow, ratio_waterfall
from transformer_core.report.kit.said import say


def waterfall(results: StudyResults) -> Drawing:
    """From the baseline to the best combination, beyond it, and without each of its parts."""
    found = results.search
    groups = (
        (found.waterfall, "+", BLUE),
        (found.beyond, "+", GREY),
        (found.left_out, "without", ORANGE),
    )
    shown = [
        RatioRow(
            f"{word} {stage.change}{' *' if stage.uncertified else ''}",
            stage.effect.ratio,
            color=color,
            adds=color != ORANGE,
        )
        for stages, word, color in groups
        for stage in stages
        if stage.effect.ratio
    ]
    figure = ratio_waterfall(shown, found.baseline)
    if not shown:
        return Drawing(
            figure,
            say("Techniques together"),
            say("Nothing to add up: %(reason)s.", reason=found.reason),
        )
    return Drawing(
        figure,
        say("Techniques together"),
        say(
            "Read it from top to bottom: each technique is added to those above it, and its bar "
            "leads from the speed before to the speed with it. What is grey was measured too, "
            "seems to cost, and is not recommended. Below, in orange, is the best combination "
            "without each of its techniques. Black lines are intervals. An asterisk marks a stage "
            "with kernels that no certificate names: it shows the way, and does not count."
        ),
    )
