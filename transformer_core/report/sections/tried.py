"""The variants by verdict, and the settings that each one changes."""

from typing import Any

from schemas.config.run_spec import RunSpec
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit.drawing import (
    Drawing,
    RatioRow,
    captioned,
    left_out,
    over,
    ratio_points,
)


def summarise(results: StudyResults) -> dict[str, list[Any]]:
    """The variants by verdict on their throughput, the largest ratio first.

    Only variants with a certificate, against a baseline with one, get a verdict. ``uncounted`` ones
    were timed, but without a certificate on both sides; ``not_equivalent`` ones should train the
    same model, and were shown not to.
    """
    compared = sorted(
        (item for item in results.comparisons.values() if item.speedup is not None),
        key=lambda item: -item.speedup.median if item.speedup else 0.0,
    )
    found: dict[str, list[Any]] = {
        verdict.lower(): [item for item in compared if item.counts and item.verdict == verdict]
        for verdict in ("FASTER", "SLOWER", "SAME", "UNDECIDED")
    }
    certificates = results.certificates.values()
    return found | {
        "uncounted": [item for item in compared if not item.counts],
        "not_equivalent": [item for item in certificates if item.status == "not_equivalent"],
    }


def changes(results: StudyResults, variant: str, reference: str) -> list[str]:
    """The settings in which a variant differs from ``reference``; several are a bundle."""
    before, after = (results.specs[name].model_dump(mode="json") for name in (reference, variant))
    names = []
    # no_meaning only says that the variant does not apply to the task.
    for section in after.keys() - {"variant", "no_meaning"}:
        old, new = before.get(section), after[section]
        if (
            not isinstance(new, dict)
            or not isinstance(old, dict)
            or old.get("kind") != new.get("kind")
        ):
            names += [section] if old != new else []
        else:
            names += [f"{section}.{field}" for field in new if old.get(field) != new[field]]
    if any(name.split(".")[0] == "parallel" for name in names):
        # A parallel strategy implies several devices: they are not a separate change.
        names = [name for name in names if name not in _PLACES]
    return sorted(names)


_PLACES = {"machine.nodes", "machine.devices_per_node"}


def changed_settings(baseline: RunSpec, recommended: RunSpec) -> dict[str, Any]:
    """Settings of ``recommended`` that differ from ``baseline``, nested as in a run spec; a section
    with a kind names it."""
    found = _differences(baseline.model_dump(mode="json"), recommended.model_dump(mode="json"))
    found.pop("variant", None)
    return found


def _differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in after.items():
        other = before.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            if inner := _differences(other, value):
                found[name] = inner
        elif value != other:
            found[name] = value
    return {"kind": after["kind"]} | found if found and "kind" in after else found


def context(results: StudyResults) -> dict[str, Any]:
    return {"summary": summarise(results), "search": results.search}


def draw_speedup(results: StudyResults) -> Drawing:
    baseline, margin = results.study.baseline, results.study.comparison.margin
    shown = [comparison for comparison in results.comparisons.values() if comparison.speedup]
    points = [
        RatioRow(
            comparison.variant,
            comparison.speedup,
            str(comparison.verdict) if comparison.counts else "not counted",
            clear=comparison.counts and comparison.verdict in ("FASTER", "SLOWER"),
        )
        for comparison in shown
        if comparison.speedup
    ]
    figure = ratio_points(points, over(baseline), margin, baseline)
    names = [comparison.variant for comparison in shown] + [baseline]
    return captioned(
        "speedup", figure, left_out(results, names), baseline=baseline, margin=f"{margin:.1%}"
    )
