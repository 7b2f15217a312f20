"""Shared basics: files written whole, records, progress, commands, sources."""
