"""Whether a variant trains the same model."""
