"""What steps and ranks wait for."""
