"""Recommendation, a section of the page."""
