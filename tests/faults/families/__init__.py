"""Faults by family, each a patch of one place, and what their families share."""
