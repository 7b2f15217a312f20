"""Recording the profile of a variant."""
