"""Measurements: timed runs, comparisons in turns, memory, limits of the machine, quality."""
