"""Observers, which watch a running training from outside."""
