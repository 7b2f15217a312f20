"""The figure of the tree of modules."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from schemas.results import LayerUse
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import WIDTH, Drawing, nothing
from transformer_core.report.kit.palette import BLUE, GREY, ORANGE
from transformer_core.report.kit.said import say
from transformer_core.report.sections.layers.read import depth, large, steps_of, with_layers
from transformer_core.trace.events.layers import SEPARATOR

_PHASES = {"forward": BLUE, "backward": ORANGE, "other": GREY}
_MOST = 2


def layer_tree(results: StudyResults) -> Drawing:
    """The modules of the baseline and of the variant that differs most in kind, as nested boxes."""
    title = say("The time of a step by layer")
    found = {
        name: (layers, steps_of(breakdown))
        for name, breakdown in with_layers(results).items()
        if breakdown.summary and (layers := large(breakdown.summary.layers))
    }
    found = dict(list(found.items())[:_MOST])
    if not found:
        text = say("No trace names the modules of the model.")
        return Drawing(nothing(Figure(figsize=(WIDTH, 1.6)), text.strip(".")), title, text)
    levels = {name: 1 + max(map(depth, layers)) for name, (layers, _) in found.items()}
    height = 0.9 + sum(0.34 * count + 0.7 for count in levels.values())
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(len(found), 1, squeeze=False, height_ratios=list(levels.values()))
    for axes, (name, (layers, steps)) in zip(panels[:, 0], found.items(), strict=True):
        _draw(axes, layers, steps)
        axes.set_title(name, loc="left", fontsize=10)
        axes.set(ylim=(levels[name] - 0.5, -0.5))
    panels[-1, 0].set_xlabel("device time of a step (ms)")
    figure.legend(
        handles=[
            Rectangle((0, 0), 1, 1, color=colour, label=name) for name, colour in _PHASES.items()
        ],
        loc="outside lower center",
        ncols=3,
        fontsize=10,
    )
    return Drawing(
        figure,
        title,
        say(
            "A wider box takes more time: every box is a module, below the one that holds it, as "
            "wide as the device time of what it launches in a step, mean over devices. The colours "
            "divide that into forward, backward and the rest. Boxes that take less than 1 % are "
            "left out, and so is what no module launches, such as the optimizer."
        ),
    )


def _draw(axes: Axes, layers: Sequence[LayerUse], steps: int) -> None:
    begins: dict[str, float] = {"": 0.0}
    whole = sum(layer.time_ns for layer in layers if depth(layer) == 0) / 1e6 / steps
    for layer in layers:
        outer, _, name = layer.path.rpartition(SEPARATOR)
        left = begins[outer]
        width = layer.time_ns / 1e6 / steps
        begins[outer], begins[layer.path] = left + width, left
        place, edge = left, depth(layer)
        for phase, colour in _PHASES.items():
            part = getattr(layer, f"{phase}_ns") / 1e6 / steps
            if part:
                axes.add_patch(
                    Rectangle((place, edge - 0.46), part, 0.92, fc=colour, lw=0, alpha=0.55)
                )
            place += part
        axes.add_patch(Rectangle((left, edge - 0.46), width, 0.92, fc="none", ec=svg.INK, lw=0.4))
        if width * 90 > whole * len(name):
            axes.text(left + width / 2, edge, name, ha="center", va="center_baseline", fontsize=8)
    axes.set(xlim=(0, whole), yticks=[])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
