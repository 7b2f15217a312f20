"""Corpus, a section of the page."""
