"""Probes: repeat the model's calls of one step with changes that must not, or must, matter."""
