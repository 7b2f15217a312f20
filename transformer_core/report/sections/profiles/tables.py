"""Profiles as tables: ``profiles.csv`` and ``operators.csv``."""

from collections.abc import Sequence

from schemas.results import DeviceBreakdown, OperatorClass, Partition
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import Row


def profiles(results: StudyResults) -> list[Row]:
    """A row per variant, rank and device; one without numbers where there is no profile."""
    breakdowns = results.breakdowns
    rows: list[Row] = []
    for name in (*results.variants, *results.study.traces):
        breakdown = breakdowns.get(name)
        head = {
            "variant": name,
            "status": breakdown.status if breakdown else None,
            "reason": breakdown.reason if breakdown else "not profiled",
            "profiler": breakdown.source if breakdown else None,
        }
        devices: Sequence[DeviceBreakdown | None] = breakdown.devices if breakdown else []
        for device in devices or [None]:
            part = device.profiled if device else None
            rows.append(
                head
                | {
                    "rank": device.rank if device else None,
                    "device": device.device if device else None,
                    "steps": len(device.steps) if device else None,
                    **{
                        field: getattr(part, field) if part else None
                        for field in Partition.model_fields
                    },
                    "span_ns": device.span.window_ns if device else None,
                    "host_bound_ns": device.host_bound_ns if device else None,
                }
            )
    return rows


def operators(results: StudyResults) -> list[Row]:
    """A row per variant and class of operators, summed over its devices and steps."""
    breakdowns = results.breakdowns
    rows: list[Row] = []
    for name in (*results.variants, *results.study.traces):
        breakdown = breakdowns.get(name)
        summary = breakdown.summary if breakdown else None
        uses: Sequence[OperatorClass | None] = summary.operators if summary else []
        for use in uses or [None]:
            fields = {
                field: getattr(use, field) if use else None for field in OperatorClass.model_fields
            }
            rows.append({"variant": name} | fields)
    return rows
