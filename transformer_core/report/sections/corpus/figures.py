"""Figures of the corpus."""

import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from schemas.results import LengthHistogram
from transformer_core.analysis.frames import lengths_frame
from transformer_core.report.drawing import WIDTH, Drawing, legend_below, nothing
from transformer_core.report.inputs import Results

_BINS = 40


def lengths_characters(results: Results) -> Drawing:
    """Lengths of the training sentences in characters."""
    return _lengths(results, results.splits["train"].lengths)


def lengths_tokens(results: Results) -> Drawing:
    """Lengths of the training sentences in tokens."""
    return _lengths(results, results.manifests["train"].lengths)


def _lengths(results: Results, lengths: LengthHistogram) -> Drawing:
    corpus = results.study.corpus
    frame = lengths_frame(lengths, corpus.source_language, corpus.target_language)
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    title = f"Sentence lengths in {lengths.unit}"
    if frame.empty:
        return Drawing(nothing(figure, "No sentence"), title, "The training split is empty.")
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
        palette=sns.color_palette("colorblind", 2),
        ax=axes,
    )
    axes.set(xlabel=f"{lengths.unit} in a sentence", ylabel="share of sentences")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    legend_below(axes, None)
    return Drawing(
        figure,
        title,
        f"Training split, shares of sentences in bins of {width} {lengths.unit}.",
    )
