"""What this machine says of the claims of a study."""
