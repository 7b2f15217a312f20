"""A timed training, alone on the machine."""
