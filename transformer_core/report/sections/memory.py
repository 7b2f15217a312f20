"""Memory: measured and predicted, by part and by rank, and the largest batch."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple, TypeVar

import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from schemas.results import (
    PARTS,
    LargestBatchResult,
    MemoryResult,
    PredictedRank,
    Prediction,
    RankAnatomy,
    RankMemory,
    VariantResult,
)
from schemas.results.common import BASELINE
from transformer_core.decide.bytes_per_parameter import Formula, formula
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import drawing, svg
from transformer_core.report.kit.drawing import Drawing
from transformer_core.report.kit.formats import plain_size
from transformer_core.report.kit.language import Said, also, say
from transformer_core.report.kit.palette import SERIES, colour_of, series_colour
from transformer_core.report.sections.answer import choose

MEBI = 1 << 20
COLOURS = {part: colour_of(part) for part in PARTS}
WORDS = {part: part.removesuffix("_bytes").replace("_", " ") for part in PARTS}
WORDS |= {"optimizer_bytes": "optimizer state", "communication_bytes": "messages"}
"""Names of the parts in figures."""

_SCHEMES = ("data_parallel", "central", "ddp", "fsdp")


def measured(results: StudyResults) -> dict[str, MemoryResult]:
    """The variants whose memory was measured."""
    return {name: found for name, found in results.memory.items() if found.status == "ok"}


def followed(results: StudyResults) -> dict[str, RankAnatomy]:
    """The first ranks of variants whose memory was measured by part."""
    return {
        name: found.ranks[0]
        for name, found in measured(results).items()
        if found.ranks and found.ranks[0].anatomy is not None
    }


def predictions(results: StudyResults) -> dict[str, Prediction]:
    found = results.predicted_memory
    return {p.variant: p for p in found.predictions} if found else {}


def expected(results: StudyResults, variant: str) -> list[PredictedRank]:
    """The predictions for the first rank, and for the others if they do different work."""
    found = predictions(results).get(variant)
    return [] if found is None else found.ranks


class Check(NamedTuple):
    """A predicted and a measured peak."""

    variant: str
    place: str  # which rank or device
    predicted: int
    measured: int

    @property
    def error(self) -> float:
        """The excess of the prediction, as a share of the measured peak."""
        return self.predicted / self.measured - 1


def label(result: MemoryResult, rank: RankAnatomy) -> str:
    """Name of a rank, or of a device if one process drives several."""
    return _place(result.ranks, rank)


Place = TypeVar("Place", RankAnatomy, RankMemory)


def _place(ranks: Sequence[Place], rank: Place) -> str:
    several = len({each.rank for each in ranks}) < len(ranks)
    return rank.device if several else f"rank {rank.rank}"


def tensor_checks(results: StudyResults) -> list[Check]:
    """Peaks of tensors in a training step, predicted and measured; see :func:`_checks`."""
    found = []
    for name, result in measured(results).items():
        used = {label(result, rank): rank.peak_tensor_bytes for rank in result.ranks}
        found += _checks(name, [rank.training_bytes for rank in expected(results, name)], used)
    return found


def run_checks(results: StudyResults) -> list[Check]:
    """The same for every timed run: for the whole process on a CPU, for the tensors on a GPU."""
    found = []
    for name, prediction in predictions(results).items():
        for repeat in results.variants[name].repeats:
            cuda = any(rank.device.startswith("cuda") for rank in repeat.memory)
            # Bytes of a process before its first tensor, if measured.
            before = 0 if cuda else prediction.context_bytes
            if before is None:
                continue
            used = {
                _place(repeat.memory, rank): rank.allocated_bytes if cuda else rank.rss_bytes
                for rank in repeat.memory
            }
            known = {place: count for place, count in used.items() if count}
            peaks = [before + rank.peak_bytes for rank in prediction.ranks]
            found += [
                check._replace(place=f"repeat {repeat.repeat}, {check.place}")
                for check in _checks(name, peaks, known)
            ]
    return found


def _checks(variant: str, peaks: Sequence[int], used: Mapping[str, int]) -> list[Check]:
    """Each rank against its own prediction, if ranks do different work; otherwise only the fullest,
    because the prediction is for the rank with the largest share of a batch."""
    if not peaks or not used:
        return []
    if len(peaks) == 1:
        place, most = max(used.items(), key=lambda item: item[1])
        return [Check(variant, place if len(used) == 1 else f"fullest, {place}", peaks[0], most)]
    return [
        Check(variant, place, peaks[min(number, len(peaks) - 1)], most)
        for number, (place, most) in enumerate(used.items())
    ]


def errors(checks: Iterable[Check]) -> tuple[float, float] | None:
    """Median and largest absolute error of predictions; None without predictions."""
    sizes = [abs(check.error) for check in checks]
    return (median(sizes), max(sizes)) if sizes else None


def telling(results: StudyResults) -> list[str]:
    """The variants that are shown in detail: the baseline, and the first on several devices."""
    found = followed(results)
    names = [name for name in (results.study.baseline,) if name in found]
    several = [name for name in found if results.specs[name].world_size > 1]
    kinds = {results.specs[name].parallel.kind: name for name in reversed(several)}
    first = next((kinds[kind] for kind in ("ddp", "fsdp", "central") if kind in kinds), None)
    return [*names, *([first] if first is not None else [])]


def schemes(results: StudyResults) -> dict[str, MemoryResult]:
    """One variant for each way of dividing the work over several devices: DataParallel, the same
    with a local loss, DistributedDataParallel, FSDP."""
    found: dict[tuple[str, bool], str] = {}
    for name, result in measured(results).items():
        parallel = results.specs[name].parallel
        if len(result.ranks) > 1:
            found.setdefault((parallel.kind, getattr(parallel, "local_loss", False)), name)
    ways = [(kind, local) for kind in _SCHEMES for local in (False, True)]
    return {found[way]: results.memory[found[way]] for way in ways if way in found}


def of_recommendation(results: StudyResults) -> tuple[float, float] | None:
    """Peak memory of a process of the recommended combination and of the baseline, medians over the
    sessions of the last comparison; None if no combination is recommended."""
    choice, _ = choose(results)
    if not (choice.searched and choice.parts):
        return None
    own, baseline = (
        [
            side.peak_memory_bytes
            for session in results.search.sessions
            for side in session.sides
            if side.name == name and side.peak_memory_bytes
        ]
        for name in (results.search.side, BASELINE)
    )
    return (median(own), median(baseline)) if own and baseline else None


class Measured(NamedTuple):
    """A variant in the tables, by its first rank."""

    result: MemoryResult
    rank: RankAnatomy
    formula: Formula
    check: Check | None  # the prediction against the fullest rank


def shown_size(one: Measured) -> str:
    return plain_size(one.rank.peak_tensor_bytes)


def memory_context(results: StudyResults) -> dict[str, Any]:
    checks, runs = tensor_checks(results), run_checks(results)
    by_variant = {check.variant: check for check in reversed(checks)}
    shown = [
        Measured(results.memory[name], rank, formula(results.specs[name]), by_variant.get(name))
        for name, rank in followed(results).items()
    ]
    by_size = sorted(shown, key=lambda one: one.rank.peak_tensor_bytes)
    predicted = predictions(results).values()
    peaks = {
        name: [rank.peak_tensor_bytes for rank in result.ranks]
        for name, result in schemes(results).items()
    }
    return {
        "recommended": of_recommendation(results),
        # Several if the page shows the same size for them.
        "fullest": [one for one in shown if shown_size(one) == shown_size(by_size[-1])],
        "leanest": [one for one in shown if shown_size(one) == shown_size(by_size[0])],
        "asked": results.study.memory is not None,
        "measured": shown,
        "without": [result for result in results.memory.values() if result.status != "ok"],
        "unpredicted": [p for p in predicted if p.status != "ok"],
        "tight": [p for p in predicted if p.fits is False],
        "detailed": {name: results.memory[name] for name in telling(results)},
        "schemes": peaks,  # of all devices
        "imbalance": lambda sizes: sizes[0] / max(sizes[1:]),
        "tensor_errors": errors(checks),
        "run_checks": runs,
        "run_errors": errors(runs),
        "cheaper": _cheaper(results),
        "foreign": {name: r.foreign for name, r in results.memory.items() if r.foreign},
        "searches": list(results.largest_batches.values()),
        "tried": _tried,
        "label": label,
    }


def _cheaper(results: StudyResults) -> list[dict[str, Any]]:
    """Variants that trade time for memory, by activation checkpointing or a loss in chunks, against
    the baseline."""
    found = followed(results)
    baseline = found.get(results.study.baseline)
    return [
        {
            "variant": name,
            "peak_bytes": rank.peak_tensor_bytes,
            "of_baseline": baseline and rank.peak_tensor_bytes / baseline.peak_tensor_bytes,
            "comparison": results.comparisons.get(name),
            "certificate": results.certificates[name].status,
        }
        for name, rank in found.items()
        if getattr(results.specs[name].model, "checkpoint", "none") != "none"
        or results.specs[name].training.loss.computed_twice
    ]


def _tried(search: LargestBatchResult) -> str:
    """The trials that confirm an answer: the largest size, and the next one."""
    return ", ".join(
        f"{trial.pairs:,} {trial.status}" for trial in search.trials if trial.purpose != "search"
    )


def draw_memory(results: StudyResults) -> Drawing:
    frame = memory_frame(results.ordered)
    names = [name for name in results.variants if name in set(frame["variant"])]
    figure, axes = drawing.rows(names, baseline=results.study.baseline)
    if names:
        sns.barplot(
            frame.assign(mebibytes=frame["peak_bytes"] / MEBI),
            x="mebibytes",
            y="variant",
            hue="rank",
            order=names,
            palette=SERIES[: frame["rank"].nunique()],
            saturation=1,
            errorbar=None,
            edgecolor="none",
            legend="full" if frame["rank"].nunique() > 1 else False,
            ax=axes,
        )
        words = say("peak memory of a rank (MiB)")
        drawing.x_axis(axes, words, "{x:,.0f}", ticks=5, ylabel="")
        drawing.legend_below(axes, "rank")
    short = drawing.shortened(names, results.study.baseline)
    return drawing.captioned("memory", figure, short, drawing.left_out(results, names))


def memory_frame(results: Sequence[VariantResult]) -> pd.DataFrame:
    """A row per variant that is ok and rank: the largest peak over the repeats, in bytes. A rank that
    drives several devices (DataParallel) has one row per device, by device number."""
    rows = [
        (result.variant, places.index((memory.rank, memory.device)), memory.peak_bytes)
        for result in results
        if result.status == "ok"
        for repeat in result.repeats
        for places in [sorted({(m.rank, m.device) for m in repeat.memory})]
        for memory in repeat.memory
    ]
    frame = pd.DataFrame(rows, columns=["variant", "rank", "peak_bytes"])
    frame = frame.dropna(subset=["peak_bytes"])
    return frame.groupby(["variant", "rank"], sort=False)["peak_bytes"].max().reset_index()


def draw_memory_anatomy(results: StudyResults) -> Drawing:
    found = followed(results)
    figure, axes = drawing.rows(list(found), baseline=results.study.baseline)
    for row, (name, rank) in enumerate(found.items()):
        parts = [(None, getattr(rank.at_peak, part) / MEBI, COLOURS[part]) for part in PARTS]
        left = drawing.stack(axes, row, parts)
        rest = (rank.residual_bytes or 0) / MEBI
        if rest > 0:
            axes.barh(row, rest, 0.7, left, fc="none", ec=svg.INK, lw=0.8)
        parameters = results.memory[name].parameters
        if parameters:
            state = formula(results.specs[name]).model_state * parameters / MEBI
            axes.plot([state, state], [row - 0.45, row + 0.45], color=svg.INK, lw=1.6)
        for predicted in expected(results, name)[:1]:
            axes.plot(predicted.training_bytes / MEBI, row, "D", ms=5, mfc="none", mec=svg.INK)
    if found:
        words = say("tensors at the peak of a step, first rank (MiB)")
        drawing.x_axis(axes, words, ticks=5, xlim=(0, None))
        used = {part for rank in found.values() for part in PARTS if getattr(rank.at_peak, part)}
        axes.plot([], [], color=svg.INK, lw=1.6, label="state by the formulas")
        axes.plot([], [], "D", ms=5, mfc="none", mec=svg.INK, ls="", label="predicted peak")
        parts_legend(figure, used, axes)
    short = drawing.shortened(found, results.study.baseline)
    return drawing.captioned("memory_anatomy", figure, short, _missing(results, list(found)))


def draw_memory_imbalance(results: StudyResults) -> Drawing:
    found = schemes(results)
    if not found:
        return drawing.empty(
            "memory_imbalance",
            say("No variant was measured on several devices."),
            drawing.NO_VARIANT,
        )
    widest = max(found.values(), key=lambda result: len(result.ranks))
    most = len(widest.ranks)
    figure, axes = drawing.rows(
        list(found), height=max(1, most // 2), baseline=results.study.baseline
    )
    height = 0.8 / most
    for row, result in enumerate(found.values()):
        for place, rank in enumerate(result.ranks):
            axes.barh(
                row - 0.4 + (place + 0.5) * height,
                rank.peak_tensor_bytes / MEBI,
                0.9 * height,
                color=series_colour(place),
                lw=0,
                label=f"{place}" if result is widest else None,
            )
    drawing.x_axis(axes, say("peak of tensors in a step (MiB)"), ticks=5, xlim=(0, None))
    drawing.legend_below(axes, "rank or device")
    return drawing.captioned(
        "memory_imbalance", figure, drawing.shortened(found, results.study.baseline)
    )


def draw_memory_prediction(results: StudyResults) -> Drawing:
    checks = tensor_checks(results)
    names = list(dict.fromkeys(check.variant for check in checks))
    figure, axes = drawing.rows(names, baseline=results.study.baseline)
    if names:
        places = list(dict.fromkeys(check.place for check in checks))
        for number, place in enumerate(places):
            points = [check for check in checks if check.place == place]
            axes.plot(
                [check.error for check in points],
                [names.index(check.variant) for check in points],
                drawing.marker(number),
                color=series_colour(number),
                ms=6,
                alpha=0.85,
                label=place,
            )
        axes.axvspan(-0.1, 0.1, color=svg.INK, alpha=0.07, lw=0)
        axes.axvline(0, color=svg.INK, lw=0.8)
        widest = max(0.12, *(1.1 * abs(check.error) for check in checks))
        words = say("predicted over measured peak of tensors, minus 1")
        drawing.x_axis(axes, words, drawing.percents(0), ticks=5, xlim=(-widest, widest))
        drawing.legend_below(axes)
    short = drawing.shortened(names, results.study.baseline)
    return drawing.captioned("memory_prediction", figure, short, _missing(results, names))


def _missing(results: StudyResults, names: Sequence[str]) -> Said:
    return (
        drawing.left_out(results, names)
        if results.memory
        else also("The study does not measure it.")
    )


MOMENTS = {
    "start": "start",
    "first_kernel": "first kernel",
    "weights": "weights",
    "wrapped": "wrapped",
    "first_forward": "forward",
    "first_backward": "backward",
    "first_step": "step",
    "steady": "steady",
    "peak": "peak",
}
"""Milestones in the order in which a run passes them."""
_SOURCES = {
    "rss_bytes": ("process (resident set)", 0, "o"),
    "tensor_bytes": ("tensors (torch's allocator)", 1, "s"),
    "reserved_bytes": ("reserved (torch's allocator)", 2, "^"),
    "process_bytes": ("process on the device (NVML)", 3, "D"),
    "device_bytes": ("device (NVML)", 4, "v"),
}


def draw_memory_milestones(results: StudyResults) -> Drawing:
    found = [
        (f"{name}, {label(results.memory[name], rank)}", rank)
        for name in telling(results)
        for rank in results.memory[name].ranks[:2]
    ]
    if not found:
        return nothing_measured("memory_milestones")
    figure, shown = drawing.panels([name for name, _ in found], 1.9)
    seen: dict[str, Artist] = {}
    for axes, (_, rank) in zip(shown, found, strict=True):
        _draw_milestones(axes, rank, seen)
        axes.set(ylabel="MiB", ylim=(0, None))
    shown[-1].set_xticks(range(len(MOMENTS)), list(MOMENTS.values()), rotation=45, ha="right")
    drawing.in_both_languages(shown[-1].get_xticklabels())
    svg.name_axis(shown[-1].xaxis.label, say("moment of the run"))
    handles, labels = [*seen.values()], [*seen]
    below = figure.legend(handles, labels, loc="outside lower center", fontsize=10)
    drawing.in_both_languages(below.get_texts())
    return drawing.captioned("memory_milestones", figure)


def _draw_milestones(axes: Axes, rank: RankAnatomy, seen: dict[str, Artist]) -> None:
    places = {name: place for place, name in enumerate(MOMENTS)}
    for source, (words, colour, marker) in _SOURCES.items():
        points = [
            (places[milestone.name], value / MEBI)
            for milestone in rank.milestones
            if (value := getattr(milestone, source)) is not None
        ]
        if points:
            (line,) = axes.plot(
                *zip(*points, strict=True), marker=marker, ms=4, color=SERIES[colour]
            )
            seen.setdefault(words, line)


def draw_memory_step(results: StudyResults) -> Drawing:
    ranks = followed(results)
    found = {name: ranks[name] for name in telling(results) if ranks[name].timeline}
    if not found:
        return nothing_measured("memory_step")
    figure, shown = drawing.panels(
        [f"{name}, {label(results.memory[name], rank)}" for name, rank in found.items()], 2.3
    )
    used = {
        part
        for axes, rank in zip(shown, found.values(), strict=True)
        for part in _draw_step(axes, rank)
    }
    words = say("operations of the step, from the first to the last")
    svg.name_axis(shown[-1].xaxis.label, words)
    parts_legend(figure, used)
    batches = "; ".join(
        f"{name}: {rank.batch.rows} rows of "
        + (f"{rank.batch.source_tokens} and " if rank.batch.source_tokens else "")
        + f"{rank.batch.target_tokens} tokens"
        for name, rank in found.items()
    )
    return drawing.captioned("memory_step", figure, f" {batches}.")


def _draw_step(axes: Axes, rank: RankAnatomy) -> set[str]:
    points = rank.timeline
    used = [part for part in PARTS if any(getattr(point.parts, part) for point in points)]
    axes.stackplot(
        [point.position for point in points],
        [[getattr(point.parts, part) / MEBI for point in points] for part in used],
        colors=[COLOURS[part] for part in used],
        lw=0,
    )
    for before, after in pairwise(points):
        if before.phase != after.phase:
            axes.axvline((before.position + after.position) / 2, color=svg.INK, lw=0.8, ls=":")
    for phase in dict.fromkeys(point.phase for point in points):
        inside = [point.position for point in points if point.phase == phase]
        above = axes.text((inside[0] + inside[-1]) / 2, 0.98, phase, ha="center", va="top")
        above.set(transform=axes.get_xaxis_transform(), fontsize=9)
        svg.name_axis(above, say(phase))
    top = max(point.parts.total_bytes for point in points) / MEBI
    axes.set(ylabel="MiB", xlim=(0, 1), ylim=(0, 1.15 * top))
    return set(used)


def nothing_measured(name: str) -> Drawing:
    return drawing.empty(name, say("No memory was measured."), drawing.NO_VARIANT)


def parts_legend(figure: Figure, used: set[str], axes: Axes | None = None) -> None:
    """A legend below the figure with the parts ``used`` and the labels of ``axes``."""
    shades = {WORDS[part]: COLOURS[part] for part in PARTS if part in used}
    drawing.legend(figure, shades, axes.get_legend_handles_labels()[0] if axes else ())
