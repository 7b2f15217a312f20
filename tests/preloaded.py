"""Imported by the server that forks processes of tests, so that these start at once."""

from transformer_core.run.quick_start import imported

# A process imports the file of its test, and with it pytest.
imported(
    "transformer_core.training.loop",
    *("torch._dynamo", "pandas", "pyarrow.compute", "pytest"),
    *("transformer_core.certify.short_run_worker", "tests.training.small_training"),
)
