"""Advice for the user: the report, and what to change in the script."""
