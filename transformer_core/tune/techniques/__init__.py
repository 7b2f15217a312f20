"""Changes that work without knowledge of the script, in one file each."""
