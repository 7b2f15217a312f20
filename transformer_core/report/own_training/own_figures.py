"""The figures of your own training."""

from collections.abc import Callable, Mapping

from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import (
    Drawing,
    RatioRow,
    ratio_points,
    ratio_waterfall,
    rows,
)
from transformer_core.report.kit.language import say
from transformer_core.report.kit.palette import VARIANT
from transformer_core.report.own_training.own_results import OwnResults, together
from transformer_core.report.sections.profile_figures import partitions, timelines
from transformer_core.trace.breakdown.timeline import read_timeline

OWN = "the step as it is"


def own_waterfall(results: OwnResults) -> Drawing:
    """From the step as it is to the recommended one."""
    shown = [
        RatioRow(f"+ {stage.techniques[-1]}", stage.speed)
        for stage in results.stages
        if stage.speed
    ]
    return Drawing(
        ratio_waterfall(shown, OWN),
        say("Techniques together"),
        say(
            "Read it from top to bottom: each technique is added to those above it, and its bar "
            "leads from the speed before to the speed with it. Black lines are intervals."
        ),
    )


def own_speeds(results: OwnResults) -> Drawing:
    """The speed of all that was timed."""
    margin = results.study.comparison.margin
    shown = [
        RatioRow(
            together(one.techniques),
            one.speed,
            str(one.verdict) if one.certificate.word == "same" else "not counted",
            clear=one.certificate.word == "same" and one.verdict in ("FASTER", "SLOWER"),
        )
        for one in results.timed
        if one.speed
    ]
    return Drawing(
        ratio_points(shown, OWN, margin),
        say("Speed of what was tried"),
        say(
            "Right of the dashed line is faster. A line is the interval of a ratio; all "
            "intervals hold at once. The shaded band is the margin of %(margin)s within which"
            " ratios count as the same. A filled dot is a verdict of FASTER or SLOWER; a "
            "variant that is not the same training is not counted.",
            margin=f"{margin:.1%}",
        ),
    )


def own_partition(results: OwnResults) -> Drawing:
    """Draws the device time of a step, before and after."""
    return partitions(
        {
            together(profile.techniques): profile.breakdown
            for profile in results.profiles
            if profile.breakdown and profile.breakdown.devices
        }
    )


def own_timelines(results: OwnResults) -> Drawing:
    """One step, before and after."""
    found = {}
    for profile in results.profiles:
        events = results.folder / "profiles" / profile.name / "events.parquet"
        if profile.breakdown and events.exists() and (timeline := read_timeline(events)):
            found[together(profile.techniques)] = timeline
    return timelines(found)


def own_memory(results: OwnResults) -> Drawing:
    """Peaks of memory."""
    shown = [(together(one.techniques), one.peak_memory_bytes) for one in results.remembered]
    if results.found.own_peak_memory_bytes:
        shown.insert(0, (OWN, results.found.own_peak_memory_bytes))
    figure, axes = rows(len(shown))
    for row, (_, peak) in enumerate(shown):
        axes.barh(row, (peak or 0) / 2**20, 0.6, color=VARIANT if row else svg.INK, alpha=0.55)
    if shown:
        axes.set_yticks(range(len(shown)), [name for name, _ in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set(xlabel="largest peak of a process (MiB)", xlim=(0, None))
    return Drawing(
        figure,
        say("Peak memory of what was tried"),
        say(
            "Largest peak of any process of a side while it was timed: device memory reserved by "
            "the allocator on a GPU, resident set of the process on a CPU, libraries included."
        ),
    )


DRAWINGS: Mapping[str, Callable[[OwnResults], Drawing]] = {
    made.__name__: made
    for made in (own_waterfall, own_speeds, own_partition, own_timelines, own_memory)
}
"""All figures, by name."""
