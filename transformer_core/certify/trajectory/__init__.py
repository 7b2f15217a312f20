"""Short trainings whose every step is kept, for the certificates."""
