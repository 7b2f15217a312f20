"""Collective operations by message size."""
