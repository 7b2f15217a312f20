"""Number formats of a training."""
