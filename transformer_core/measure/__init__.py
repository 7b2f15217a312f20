"""What a run measures: time between synchronised points, memory, the machine, provenance."""
