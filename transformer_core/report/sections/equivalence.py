"""Does it train the same model? Certificates, deviations and losses."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.ticker import LogLocator, NullLocator

from schemas.results import VariantResult
from transformer_core.certify.bounds import WORDS
from transformer_core.common.records import read_as
from transformer_core.common.tables import read_table
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import drawing, svg
from transformer_core.report.kit.drawing import Drawing
from transformer_core.report.kit.language import NOTHING, Said, also, say
from transformer_core.report.kit.palette import REFERENCE, VARIANT, colour_of
from transformer_core.report.sections.answer import choose


def equivalence_context(results: StudyResults) -> dict[str, Any]:
    choice, _ = choose(results)
    own = results.search.certificate if choice.searched else results.certificates[choice.parts[0]]
    audit = results.folder / "audit.json"  # missing in old results
    return {
        "own": own if choice.parts else None,
        "audit": read_as(audit, dict[str, Any]) if audit.exists() else None,
    }


FLOOR = 1e-6  # smaller shares are drawn here, because a logarithmic axis has no 0


def draw_equivalence(results: StudyResults) -> Drawing:
    shown = [item for item in results.certificates.values() if item.deviations]
    names = [certificate.variant for certificate in shown]
    figure, axes = drawing.rows(names, baseline=results.study.baseline)
    for row, certificate in enumerate(shown):
        shares = [share(d.measured, d.bound) for d in certificate.deviations]
        axes.plot(shares, [row] * len(shares), "|", color=REFERENCE, ms=9)
        largest = max(certificate.deviations, key=lambda d: share(d.measured, d.bound))
        holds = certificate.status in ("equivalent", "different")
        color = VARIANT if holds else colour_of("refused")
        axes.plot(share(largest.measured, largest.bound), row, "o", color=color, ms=6)
        drawing.beside(axes, row, say(WORDS[largest.quantity]), fontsize=8)
    if shown:
        axes.axvline(1, color=svg.INK, ls="--", lw=1)
        axes.set_xscale("log")
        axes.set_xlim(FLOOR / 2, None)
        axes.xaxis.set_major_locator(LogLocator(1_000))
        axes.xaxis.set_minor_locator(NullLocator())
        drawing.x_axis(axes, say("deviation over its bound"), "{x:g}")
    short = drawing.shortened(names, results.study.baseline)
    return drawing.captioned("equivalence", figure, short, _left_out(results))


def share(measured: float, bound: float) -> float:
    """``measured`` over ``bound``, at least FLOOR; a bound of 0 allows only 0."""
    if bound == 0:
        return 1 / FLOOR if measured else FLOOR
    return max(measured / bound, FLOOR)


def _left_out(results: StudyResults) -> Said:
    silent = [
        f"{certificate.variant} ({certificate.status.replace('_', ' ')})"
        for certificate in results.certificates.values()
        if not certificate.deviations
    ]
    return also("Nothing to compare: %(names)s.", names=", ".join(silent)) if silent else NOTHING


def recorded(steps_file: Path) -> pd.DataFrame:
    """Steps and losses of the steps whose loss was read."""
    return read_table(steps_file, columns=["step", "loss"]).to_pandas().dropna(subset=["loss"])


def validated(result: VariantResult) -> pd.DataFrame:
    """Steps and finite validation losses of the first repeat."""
    found = [(v.step, v.loss) for v in result.repeats[0].validations if v.loss is not None]
    return pd.DataFrame(found, columns=["step", "loss"])


def draw_training_loss(results: StudyResults) -> Drawing:
    ok = [result.variant for result in results.ordered if result.status == "ok"]
    losses = {name: recorded(results.steps_file(name)) for name in ok}
    words = say(
        "Lower is better: cross-entropy in nats per target token, with label smoothing, over the "
        "steps. First repeat of each variant."
    )
    if results.study.task.kind == "language_model":
        words = say(
            "Lower is better: cross-entropy in nats per token over the steps. First repeat of each "
            "variant."
        )
    return _loss(results, losses, say("Training loss"), words)


def draw_validation_loss(results: StudyResults) -> Drawing:
    losses = {one.variant: validated(one) for one in results.ordered if one.status == "ok"}
    words = say(
        "Lower is better: cross-entropy in nats per target token of the validation split, without "
        "label smoothing. First repeat of each variant."
    )
    if results.study.task.kind == "language_model":
        words = say(
            "Lower is better: cross-entropy in nats per token of the validation split. First "
            "repeat of each variant."
        )
    return _loss(results, losses, say("Validation loss"), words, marker="o")


def _loss(
    results: StudyResults,
    losses: dict[str, pd.DataFrame],
    title: Said,
    words: Said,
    marker: str | None = None,
) -> Drawing:
    shown = {name: loss for name, loss in losses.items() if len(loss)}
    if not shown:
        figure = drawing.nothing(height=3.2)
    else:
        figure, axes = drawing.chart(3.2 + 0.12 * len(shown))
        for name, loss in shown.items():
            look = drawing.series(list(results.variants).index(name))
            axes.plot(loss["step"], loss["loss"], marker=marker, ms=4, label=name, **look)
        svg.name_axis(axes.xaxis.label, say("optimizer step"))
        measured = Said(title.lower(), title.korean)
        svg.name_axis(axes.yaxis.label, say("%(loss)s (nats per token)", loss=measured))
        drawing.legend_below(axes)
    return Drawing(figure, title, words + drawing.left_out(results, [*shown]))
