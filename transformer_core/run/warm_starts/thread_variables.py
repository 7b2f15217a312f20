"""How many threads libraries have, as their environment says it."""

THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"),
    *("VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS"),
)
"""Snakemake sets all of them to the cores of a job, and each library reads one or several, some in
an order of their own: torch takes MKL's before OpenMP's."""
