"""Techniques, a section of the page."""
