"""Starts the processes of a job, on one host or several, and finds out how they ended."""
