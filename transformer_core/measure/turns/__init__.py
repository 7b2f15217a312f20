"""Variants that take turns on the machine, so that small differences show."""
