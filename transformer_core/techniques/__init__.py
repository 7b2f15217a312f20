"""Techniques that stand in one file each: settings, facts and implementation.

Schemas name them, so they import no torch before they are used, and nothing else of the project.
"""
