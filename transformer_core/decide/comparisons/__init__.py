"""What the comparisons of a study show."""
