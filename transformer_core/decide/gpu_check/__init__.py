"""What a check of a GPU found, line by line."""
