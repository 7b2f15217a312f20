"""Corpora become sentence pairs: reading, downloading, filtering."""
