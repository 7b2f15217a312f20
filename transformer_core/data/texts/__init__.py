"""Texts in one language: read as documents, and cut into rows of a context."""
