"""Turns the results of runs into comparable numbers."""
