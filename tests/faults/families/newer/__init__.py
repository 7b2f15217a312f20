"""Faults of the newer techniques, and of language models."""
