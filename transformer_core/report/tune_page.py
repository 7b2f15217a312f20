"""The answer for a training script on one self-contained page."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from schemas.config.study import Study
from schemas.results.profiles import Breakdown
from transformer_core.common.files import write_text
from transformer_core.common.job import Job
from transformer_core.common.records import read_record
from transformer_core.report.kit.drawing import to_svg
from transformer_core.report.kit.svg import Picture, picture
from transformer_core.report.page import fill
from transformer_core.report.sections.profiles import partitions, timelines
from transformer_core.trace.breakdown.timeline import read_timeline
from transformer_core.tune.answer import (
    Answer,
    Tried,
    applying,
    by_result,
    headline,
    markdown,
    notes,
    same,
    speed,
    unaudited,
    useful,
)

OWN = "unchanged"
MEMORY = ("libraries", "weights", "gradients", "optimizer", "rest")
"""Parts of the peak memory, in the order of the table."""


def render(answer: Answer, study: Study, origin: dict[str, Any], folder: Path) -> str:
    """The page as HTML; the profiles' event tables are below ``folder``."""
    timed = [each for each in answer.tried if each.ratio is not None]
    profiles = breakdowns(answer)
    return fill(
        "tune_page.html",
        study=study,
        answer=answer,
        applying=applying(answer, str(folder / "changes.diff")),
        headline=headline(answer),
        rows=sorted(answer.tried, key=by_result),
        bars=[bar(each, timed) for each in sorted(timed, key=lambda t: -(t.ratio or 0))],
        speed=speed,
        same=same,
        unaudited=unaudited(answer),
        notes=notes(answer),
        origin=origin,
        profiles=profiles,
        pictures=pictures(profiles, folder) if profiles else {},
        failed=[each for each in answer.profiles if each.reason],
        per_step=per_step,
        memory=memory(answer),
        parts=MEMORY,
    )


def breakdowns(answer: Answer) -> dict[str, Breakdown]:
    """The profiles with device activity, by the techniques applied."""
    found = {}
    for profile in answer.profiles:
        if profile.breakdown and profile.breakdown["devices"]:
            name = " + ".join(profile.techniques) or OWN
            found[name] = Breakdown.model_validate(profile.breakdown)
    return found


def per_step(breakdown: Breakdown, nanoseconds: int) -> float:
    """Mean milliseconds of a step, from a time summed over steps and devices."""
    return nanoseconds / 1e6 / breakdown.device_steps


def pictures(found: Mapping[str, Breakdown], folder: Path) -> dict[str, Picture]:
    """Figures: where the time of a step goes, and one step of each profile."""
    steps = {}
    for name, breakdown in found.items():
        events = folder / "profiles" / breakdown.name / "events.parquet"
        if events.exists() and (timeline := read_timeline(events)):
            steps[name] = timeline
    drawings = {"partition": partial(partitions, found), "timelines": partial(timelines, steps)}
    return {name: picture(to_svg(name, draw), name) for name, draw in drawings.items()}


def memory(answer: Answer) -> dict[str, dict[str, int]]:
    known = {OWN: answer.memory} | {each.name: each.memory for each in answer.tried}
    found = {}
    for name, parts in known.items():
        if parts:
            rest = parts["peak"] - sum(parts[part] for part in MEMORY[:-1])
            found[name] = parts | {"rest": max(0, rest)}
    return found


def bar(tried: Tried, timed: Sequence[Tried]) -> dict[str, Any]:
    """A ratio and its interval on an axis from 0 to the largest upper end, in percent."""
    largest = max([1.0, *(each.high or 0.0 for each in timed)]) * 1.02
    low, high = tried.low or 0.0, tried.high or 0.0
    return {
        "name": tried.name,
        "width": 100 * (tried.ratio or 0.0) / largest,
        "low": 100 * low / largest,
        "span": 100 * (high - low) / largest,
        "one": 100 / largest,
        "text": tried.interval,
        "useful": useful(tried),
    }


class TunePageJob(Job):
    """Writes the answer for a training script as one HTML file and as Markdown."""

    kind = "tune_page"

    study: Path  # study.json
    answer: Path  # answer.json
    output: Path
    brief: Path  # report.md to write

    def run(self, log_file: Path | None) -> None:
        answer = Answer.read(self.answer)
        origin = json.loads(self.answer.read_text(encoding="utf-8")).get("provenance", {})
        study = read_record(self.study, Study)
        write_text(self.brief, markdown(answer, study.title))
        write_text(self.output, render(answer, study, origin, self.answer.parent))
