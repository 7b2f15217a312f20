"""Translations, a section of the page."""
