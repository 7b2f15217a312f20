"""More time for the comparisons that are undecided, those that matter most first."""
