"""The page of a check of a GPU."""
