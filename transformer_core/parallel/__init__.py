"""Strategies that divide training among devices, and the processes in which they run."""
