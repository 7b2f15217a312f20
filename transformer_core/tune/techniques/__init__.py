"""Changes that need no knowledge of a script: one file each."""
