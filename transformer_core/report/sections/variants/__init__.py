"""Variants, a section of the page."""
