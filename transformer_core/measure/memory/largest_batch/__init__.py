"""The largest batch of a variant that fits."""
