"""Profiles, a section of the page."""
