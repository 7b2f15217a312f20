"""The memory of a run spec, without running it."""
