"""Families, a section of the page."""
