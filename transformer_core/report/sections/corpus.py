"""Figures of the corpus."""

import pandas as pd
import seaborn as sns

from schemas.config.data import GrammarTexts, TextsCorpus
from schemas.results import LengthHistogram
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import Drawing, chart, legend_below, nothing, percents
from transformer_core.report.kit.language import Said, say
from transformer_core.report.kit.palette import SERIES

_BINS = 40


def draw_lengths_characters(results: StudyResults) -> Drawing:
    return _lengths(results, results.splits["train"].lengths)


def draw_lengths_tokens(results: StudyResults) -> Drawing:
    return _lengths(results, results.manifests["train"].lengths)


def _lengths(results: StudyResults, lengths: LengthHistogram) -> Drawing:
    corpus = results.study.corpus
    unit = say("tokens") if lengths.unit == "tokens" else say("characters")
    if isinstance(corpus, TextsCorpus | GrammarTexts):
        frame, one = lengths_frame(lengths, target=corpus.language), "text"
        title = say("Lengths of texts in %(unit)s", unit=unit)
        if lengths.unit == "tokens":
            one, title = "row", say("Lengths of rows in tokens")
    else:
        frame = lengths_frame(lengths, corpus.source_language, corpus.target_language)
        title, one = say("Sentence lengths in %(unit)s", unit=unit), "sentence"
    if frame.empty:
        return Drawing(nothing(f"No {one}", 3.0), title, say("The training split is empty."))
    figure, axes = chart(3.0)
    shortest, longest = int(frame["length"].min()), int(frame["length"].max())
    width = -(-(longest - shortest + 1) // _BINS)
    # Whole bins only, or seaborn stretches them to the range.
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
        palette=SERIES[: frame["side"].nunique()],
        ax=axes,
    )
    counted, shared = _labels(one, unit)
    svg.name_axis(axes.xaxis.label, counted)
    svg.name_axis(axes.yaxis.label, shared)
    axes.yaxis.set_major_formatter(percents())
    legend_below(axes)
    return Drawing(figure, title, _about(one, width, unit))


def lengths_frame(
    lengths: LengthHistogram, source: str | None = None, target: str = ""
) -> pd.DataFrame:
    """A row per side and length, with the fraction of the side's sentences that have it; without a
    ``source`` language, a row per length of texts."""
    rows = []
    sides = [(f"source ({source})", lengths.source), (f"target ({target})", lengths.target)]
    if source is None:
        sides = [(f"texts ({target})", lengths.target)]
    for side, histogram in sides:
        total = sum(histogram.values())
        rows += [(side, length, count / total) for length, count in sorted(histogram.items())]
    return pd.DataFrame(rows, columns=["side", "length", "share"])


def _labels(one: str, unit: Said) -> tuple[Said, Said]:
    if one == "sentence":
        return say("%(unit)s in a sentence", unit=unit), say("share of sentences")
    if one == "text":
        return say("%(unit)s in a text", unit=unit), say("share of texts")
    return say("%(unit)s in a row", unit=unit), say("share of rows")


def _about(one: str, width: int, unit: Said) -> Said:
    if one == "sentence":
        return say(
            "Lengths of the sentences of the training split in %(unit)s: shares in bins of %(width)s.",
            width=width,
            unit=unit,
        )
    if one == "text":
        return say(
            "Lengths of the texts of the training split in %(unit)s: shares in bins of %(width)s.",
            width=width,
            unit=unit,
        )
    return say("Lengths of the rows of the training split: nearly all have the full length.")
