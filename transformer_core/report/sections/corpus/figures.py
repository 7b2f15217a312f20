"""Figures of the corpus."""

import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from schemas.results import LengthHistogram
from transformer_core.analysis.data_frames import lengths_frame
from transformer_core.analysis.study_results import StudyResults
from transformer_core.report.kit.drawing import WIDTH, Drawing, legend_below, nothing
from transformer_core.report.kit.palette import SERIES
from transformer_core.report.kit.said import say

_BINS = 40


def lengths_characters(results: StudyResults) -> Drawing:
    """Lengths of the training sentences in characters."""
    return _lengths(results, results.splits["train"].lengths)


def lengths_tokens(results: StudyResults) -> Drawing:
    """Lengths of the training sentences in tokens."""
    return _lengths(results, results.manifests["train"].lengths)


def _lengths(results: StudyResults, lengths: LengthHistogram) -> Drawing:
    corpus = results.study.corpus
    frame = lengths_frame(lengths, corpus.source_language, corpus.target_language)
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    title = say("Sentence lengths in %(unit)s", unit=lengths.unit)
    if frame.empty:
        return Drawing(nothing(figure, "No sentence"), title, say("The training split is empty."))
    axes = figure.subplots()
    shortest, longest = int(frame["length"].min()), int(frame["length"].max())
    width = -(-(longest - shortest + 1) // _BINS)
    # Whole bins only: seaborn stretches them to the range where they do not fit.
    bins = -(-(longest - shortest + 1) // width)
    sns.histplot(
        frame,
        x="length",
        weights="share",
        hue="side",
        binrange=(shortest - 0.5, shortest - 0.5 + bins * width),
        bins=bins,
        element="step",
        alpha=0.2,
        palette=SERIES[:2],
        ax=axes,
    )
    axes.set(xlabel=f"{lengths.unit} in a sentence", ylabel="share of sentences")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    legend_below(axes, None)
    return Drawing(
        figure,
        title,
        say(
            "How long the sentences of the training split are: shares in bins of %(width)s "
            "%(unit)s.",
            width=width,
            unit=lengths.unit,
        ),
    )
