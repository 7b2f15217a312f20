"""Equivalence, a section of the page."""
