"""Readers of Nsight Systems' and torch.profiler's traces."""
