"""Measurements of a run: time between synchronised points, memory, the machine, provenance."""
