"""Observers, which watch a training from outside while it runs."""
