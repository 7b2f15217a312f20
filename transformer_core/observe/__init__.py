"""Observers: what looks at a training from outside while it runs."""
