"""Checks that need a GPU: its tests, and which attention kernels really run."""
