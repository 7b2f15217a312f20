"""The figure of what differences are made of."""

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import Drawing, legend_below, name_rows, rows
from transformer_core.report.kit.palette import BLUE, BROWN, GREY, VERMILION, YELLOW
from transformer_core.report.kit.said import say
from transformer_core.report.sections.why.read import reasons

_PARTS = {
    "computation": BLUE,
    "exposed communication": VERMILION,
    "exposed copies": YELLOW,
    "exposed CUDA graphs": BROWN,
    "idle": GREY,
}


def differences(results: StudyResults) -> Drawing:
    """By variant, the parts by which its step differs from that of the baseline."""
    baseline = results.study.baseline
    found = [reason for reason in reasons(results) if reason.comparison.reference == baseline]
    figure, axes = rows(len(found))
    labelled: set[str] = set()
    for row, reason in enumerate(found):
        ends = {True: 0.0, False: 0.0}
        parts = {part.name: part.difference_ms for part in reason.difference.parts}
        for name, colour in _PARTS.items():
            change = parts.get(name, 0.0)
            if not change:
                continue
            label = name if name not in labelled else None
            labelled.add(name)
            longer = change > 0
            axes.barh(row, change, 0.7, ends[longer], color=colour, lw=0, label=label)
            ends[longer] += change
        axes.plot(reason.difference.step.difference_ms, row, "D", color=svg.INK, ms=5)
    if found:
        name_rows(axes, [reason.comparison.variant for reason in found])
        axes.axvline(0, color=svg.INK, lw=0.8)
        axes.set_xlabel(f"difference of a profiled step to {baseline} (ms)")
        handles, labels = axes.get_legend_handles_labels()
        once = dict(zip(labels, handles, strict=True))
        order = [name for name in _PARTS if name in once]
        axes.legend([once[name] for name in order], order)
        legend_below(axes, None)
    return Drawing(
        figure,
        say("What makes a step shorter or longer"),
        say(
            "To the left is what takes less time than in the baseline, to the right what takes "
            "more: parts of the wall time of a profiled step. The diamond is their sum, the "
            "difference of the step. Profiled steps are slower than timed ones."
        ),
    )
