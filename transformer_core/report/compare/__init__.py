"""Two sets of results beside each other."""
