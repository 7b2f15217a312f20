"""The figure of the certificates: how much of what is allowed each variant uses."""

from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from schemas.config.equivalence import Tolerance
from schemas.results import Certificate
from transformer_core.certify.certificates.deviations import WORDS
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import Drawing, legend_below, rows
from transformer_core.report.kit.palette import GREY, SERIES
from transformer_core.report.kit.said import NOTHING, Said, say
from transformer_core.report.sections.equivalence.losses import training_loss, validation_loss

__all__ = ["equivalence", "training_loss", "validation_loss"]

FLOOR = 1e-6
"""Smaller shares are drawn here: a logarithmic axis has no place for 0."""

MARKERS = {
    "loss": "o",
    "grad_norm": "s",
    "weights": "D",
    "replicas": "P",
    "final_loss": "^",
    "point_loss": "v",
    "point_norm": "h",
    "gradient": "<",
    "gradient_ratio": ">",
    "update": "X",
    "update_ratio": "*",
    "dropout": "p",
    "dropout_loss": "d",
    "dropout_gradient": "H",
    "dropout_spread": "8",
    "dropout_draws": "1",
    "dropout_slope": "2",
    "resumed": "3",
    "decoding": "4",
    "validation": "+",
}


def equivalence(results: StudyResults) -> Drawing:
    """Every measured deviation over its bound, on a logarithmic axis."""
    shown = [item for item in results.certificates.values() if item.deviations]
    figure, axes = rows(len(shown))
    colors = dict(zip(MARKERS, cycle(SERIES), strict=False))
    used = {d.quantity for certificate in shown for d in certificate.deviations}
    for row, certificate in enumerate(shown):
        _course(axes, row, certificate)
        for deviation in certificate.deviations:
            axes.plot(
                share(deviation.measured, deviation.bound),
                row,
                MARKERS[deviation.quantity],
                color=colors[deviation.quantity],
                ms=6,
            )
    if shown:
        axes.axvline(1, color=svg.INK, ls="--", lw=1)
        axes.set_xscale("log")
        axes.set_xlim(FLOOR / 2, None)
        axes.xaxis.set_major_locator(LogLocator(numticks=5))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks(range(len(shown)), [certificate.variant for certificate in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set(xlabel="deviation over what is allowed")
        for quantity, marker in MARKERS.items():
            if quantity in used:
                label = WORDS[quantity]
                axes.plot([], [], marker, color=colors[quantity], ms=6, label=label)
        legend_below(axes, None)
    return Drawing(
        figure,
        say("Deviation from the reference"),
        say(
            "Largest deviation of each variant over what its class allows. Left of the dashed line "
            "it trains the same model; at the left edge the numbers are equal. Grey strokes are "
            "the losses of the single steps."
        )
        + _left_out(results),
    )


def share(measured: float, bound: float) -> float:
    """``measured`` over ``bound``, at least FLOOR; a bound of 0 allows nothing else."""
    if bound == 0:
        return 1 / FLOOR if measured else FLOOR
    return max(measured / bound, FLOOR)


def _course(axes: Axes, row: int, certificate: Certificate) -> None:
    """The loss of every step, where each has a bound of its own."""
    if isinstance(certificate.equivalence, Tolerance):
        bound = certificate.equivalence.loss
        shares = [
            share(abs(step.loss - step.reference_loss) / abs(step.reference_loss), bound)
            for step in certificate.steps
        ]
        axes.plot(shares, [row] * len(shares), "|", color=GREY, ms=9, zorder=1)


def _left_out(results: StudyResults) -> Said:
    silent = [
        f"{certificate.variant} ({certificate.status.replace('_', ' ')})"
        for certificate in results.certificates.values()
        if not certificate.deviations
    ]
    if not silent:
        return NOTHING
    return Said(" ", " ") + say("Nothing to compare: %(names)s.", names=", ".join(silent))
