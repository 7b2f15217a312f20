"""Where the memory of a variant goes, measured over a few steps."""
