"""What only a GPU can tell: its tests, and the truth about kernels of attention."""
