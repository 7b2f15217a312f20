"""The page of a training of the user's own."""
