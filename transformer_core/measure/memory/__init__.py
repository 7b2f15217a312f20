"""Where memory goes, what a run will need, and the largest batch that fits."""
