"""From the results of runs to numbers that can be compared."""
