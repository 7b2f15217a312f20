"""Medians, intervals, verdicts."""
