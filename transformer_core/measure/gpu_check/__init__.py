"""Checks that need a GPU: its tests, its environment, and the attention kernels that really run."""
