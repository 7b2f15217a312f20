"""Strategies that divide training over devices, and the processes they run in."""
