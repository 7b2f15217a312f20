"""The machine: hardware, NVML, its state and speed at a moment, provenance."""
