"""Columns that several tables share."""

from schemas.results import Interval


def interval_columns(name: str, interval: Interval | None) -> dict[str, float | int | None]:
    """A median with its limits and the number of samples; empty where nothing was measured."""
    return {
        f"{name}_median": interval.median if interval else None,
        f"{name}_low": interval.low if interval else None,
        f"{name}_high": interval.high if interval else None,
        f"{name}_samples": interval.samples if interval else None,
    }
