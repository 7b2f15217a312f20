"""The page of your own training."""
