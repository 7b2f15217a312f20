"""The machine: its hardware, its current state and speed, peak memory, provenance."""
