"""What one device computes in a step while nobody talks."""
