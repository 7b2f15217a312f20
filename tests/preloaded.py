"""Imported by the server that forks processes of tests, so that these start at once."""

from transformer_core.run.quick_start import imported

imported("transformer_core.training.loop", "torch._dynamo", "pandas", "pyarrow.compute")
