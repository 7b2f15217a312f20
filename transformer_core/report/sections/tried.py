"""The variants by verdict, and the settings that each changes; worded in the template."""

from typing import Any

from schemas.config.run_spec import RunSpec
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit.drawing import Drawing, RatioRow, captioned, left_out, ratio_points


def summarise(results: StudyResults) -> dict[str, list[Any]]:
    """The variants by what can be said of their throughput, the largest ratio first.

    Only variants that train the same model, against a baseline that does, are faster or slower, and
    only if the verdict says so. ``uncounted`` ones were timed, but without a certificate on both
    sides; ``not_equivalent`` ones were meant to train the same model, and shown not to.
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
    """The settings in which a variant differs from another one; several are a bundle."""
    before, after = (results.specs[name].model_dump(mode="json") for name in (reference, variant))
    names = []
    # A spec says so where a variant has no meaning for the task; that is no setting.
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
        # Several devices belong to a parallel strategy and are not a change of their own.
        names = [name for name in names if name not in _PLACES]
    return sorted(names)


_PLACES = {"machine.nodes", "machine.devices_per_node"}


def changed_settings(baseline: RunSpec, recommended: RunSpec) -> dict[str, Any]:
    """Settings of the second that differ from the first, nested as in a run spec; those of a
    choice with its kind."""
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
    """The comparisons by verdict, the settings that each variant changes, and the search."""
    baseline = results.study.baseline
    return {
        "summary": summarise(results),
        "changes": {name: changes(results, name, baseline) for name in results.variants},
        "search": results.search,
    }


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
    figure = ratio_points(points, f"throughput over that of {baseline}", margin, baseline)
    names = [comparison.variant for comparison in shown] + [baseline]
    return captioned(
        "speedup", figure, left_out(results, names), baseline=baseline, margin=f"{margin:.1%}"
    )
