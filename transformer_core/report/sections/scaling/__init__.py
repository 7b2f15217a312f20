"""Scaling, a section of the page."""
