"""The quality of the trained models: the time that trainings need to reach the same one, how much of a
technique's gain in its kernels remains in it, and samples of what the models write."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats

from schemas.results import Breakdown, Interval, QualityLook, QualitySide
from schemas.results.common import BASELINE, BEST
from schemas.results.runs import reaching
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import drawing, svg
from transformer_core.report.kit.formats import combination, plain_number
from transformer_core.report.kit.language import say
from transformer_core.report.kit.palette import REFERENCE
from transformer_core.report.sections.answer import choose
from transformer_core.report.sections.profiles import shown
from transformer_core.trace.compare import Change, difference


def quality_context(results: StudyResults) -> dict[str, Any]:
    """The result, and its sides with their names on the page."""
    found, baseline = results.quality, results.study.baseline
    return {
        "quality": found,
        "sides": [(combination(s.parts, baseline), s) for s in found.sides] if found else [],
        "gains": from_kernel_to_quality(results),
    }


@dataclass(frozen=True)
class Gain:
    """The speed-up of a side of the race over the baseline: in its kernels, in a step, and to the
    same validation loss."""

    name: str
    kernels: Change | None
    """The operator class whose time falls most, in a profiled step; null without profiles."""
    step: Interval | None  # from the turns of the race after the first; null for fewer than three
    steps: float | None  # steps to the same loss, over those of the baseline
    time: float | None


def from_kernel_to_quality(results: StudyResults) -> list[Gain]:
    found = results.quality
    raced = [side for side in found.sides if side.looks] if found else []
    if len(raced) < 2 or raced[0].name != BASELINE:
        return []
    profiles = shown(results)
    best = results.search.profile
    if best is not None and best.devices:
        profiles = {**profiles, BEST: best}
    baseline = raced[0]
    return [
        Gain(
            combination(side.parts, results.study.baseline),
            _kernels(profiles, baseline.parts[0], side),
            _of_turns(baseline.looks, side.looks),
            *_to_the_same_loss(baseline.looks, side.looks),
        )
        for side in raced[1:]
    ]


def _to_the_same_loss(
    baseline: Sequence[QualityLook], side: Sequence[QualityLook]
) -> tuple[float | None, float | None]:
    """Steps of ``side`` over those of the baseline, and time of the baseline over that of ``side``,
    to the lowest loss that both reached."""
    loss = max(min(look.loss for look in looks) for looks in (baseline, side))
    first, other = reaching(baseline, loss), reaching(side, loss)
    if first is None or other is None:
        return None, None
    return other[0] / first[0], first[1] / other[1]


def _of_turns(baseline: Sequence[QualityLook], side: Sequence[QualityLook]) -> Interval | None:
    """Seconds of a turn of the baseline over those of ``side``, from adjacent turns, all of which have
    the same number of steps; 95 % interval by Student's t. The first turn, which includes compilation
    and what libraries do on first use, says nothing about a step."""

    def seconds(looks: Sequence[QualityLook]) -> list[float]:
        return [after.seconds - before.seconds for before, after in pairwise(looks)]

    pairs = [*zip(seconds(baseline), seconds(side), strict=False)]
    if len(pairs) < 3 or not all(one > 0 and other > 0 for one, other in pairs):
        return None
    logs = np.log([one / other for one, other in pairs])
    half = stats.sem(logs) * stats.t.ppf(0.975, len(logs) - 1)
    low, middle, high = np.exp([logs.mean() - half, logs.mean(), logs.mean() + half])
    return Interval(median=float(middle), low=float(low), high=float(high), samples=len(logs))


def _kernels(profiles: dict[str, Breakdown], baseline: str, side: QualitySide) -> Change | None:
    """The operator class whose time falls most from the baseline's step to that of ``side``."""
    name = side.name if side.name == BEST else side.parts[0]
    if baseline not in profiles or name not in profiles:
        return None
    changes = difference(profiles[baseline], profiles[name]).operators
    fallen = [change for change in changes if change.ratio is not None and change.ratio < 1]
    return min(fallen, key=lambda change: change.difference_ms, default=None)


def draw_quality(results: StudyResults) -> drawing.Drawing:
    found = results.quality
    shown = [side for side in found.sides if side.looks] if found else []
    if found is None or not shown:
        figure = drawing.nothing(height=3.0)
    else:
        figure, axes = drawing.chart(3.0)
        measured = "loss" if found.bleu is None else "bleu"
        # A variant may be recommended instead.
        best = "recommended" if choose(results)[0].searched else "the search's best"
        axes.axhline(getattr(found, measured), color=svg.INK, ls="--", lw=1)
        for side in shown:
            number = 0 if side.name == BEST else found.sides.index(side)
            look = {"color": REFERENCE} if side.name == BASELINE else drawing.series(number)
            seconds = [look.seconds for look in side.looks]
            values = [getattr(look, measured) for look in side.looks]
            label = best if side.name == BEST else side.parts[0]
            axes.plot(seconds, values, marker=drawing.marker(number), ms=4, label=label, **look)
        axes.set(xlim=(0, None))
        if measured == "bleu":
            axes.set(ylabel="BLEU", ylim=(0, None))
        else:
            svg.name_axis(axes.yaxis.label, say("validation loss, nats per token"))
        svg.name_axis(axes.xaxis.label, say("seconds of training"))
        drawing.legend_below(axes)
    return drawing.captioned("quality", figure)


FEWEST_BLEU = 5.0
"""Below this BLEU, matches are chance, and translations say nothing about the variants."""

ByText = defaultdict[str, dict[str, None]]  # the variants that gave each text, as keys


def translations_context(results: StudyResults) -> dict[str, Any]:
    """The samples, and the variants that translate best."""
    scores = {name: one.bleu for name, one in results.evaluations.items() if one.bleu is not None}
    best = max(scores.values(), default=0.0)
    return {
        "asked": results.study.evaluation.max_pairs > 0,
        "translate_best": as_shown(scores, best, 3),
        "samples": translations(results),
        "best": best,
        "fewest": FEWEST_BLEU,
    }


def translations(results: StudyResults) -> dict[tuple[str, str], ByText]:
    """Variants by translation, by source and reference."""
    found: defaultdict[tuple[str, str], ByText] = defaultdict(lambda: defaultdict(dict))
    for name, evaluation in results.evaluations.items():
        for one in evaluation.samples:
            found[one.source, one.reference][one.hypothesis][name] = None
    return found


def continuations_context(results: StudyResults) -> dict[str, Any]:
    """The variants that predict the test split best, and the samples: variants by continuation, by
    way of sampling, by prompt and reference."""
    judged = {name: one.texts for name, one in results.evaluations.items() if one.texts}
    bits = {name: quality.bits_per_byte for name, quality in judged.items()}
    best = min(bits, key=bits.__getitem__, default=None)
    samples: Any = defaultdict(lambda: {"greedy": defaultdict(dict), "drawn": defaultdict(dict)})
    for name, evaluation in results.evaluations.items():
        for one in evaluation.continuations:
            sample = samples[one.prompt, one.reference]
            sample["greedy"][one.greedy][name] = None
            sample["drawn"][one.drawn][name] = None
    return {
        "predict_best": as_shown(bits, bits[best], 4) if best else [],
        "quality": judged[best] if best else None,
        "samples": samples,
    }


def as_shown(scores: dict[str, float], best: float, digits: int) -> list[str]:
    """The variants that the page cannot tell from the ``best``, with ``digits`` digits."""
    text = plain_number(best, digits)
    return [name for name, score in scores.items() if plain_number(score, digits) == text]
