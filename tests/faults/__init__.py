"""Faults that certificates must show, and healthy variants that must keep theirs."""
