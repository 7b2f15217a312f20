"""The GPUs of a host: what they are, whether torch can use them, and who else may."""
