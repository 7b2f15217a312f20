"""Training, measuring and reporting; each job runs as ``python -m transformer_core.<room>``.

Rooms import in one direction only, which tests/test_layers.py lists.
"""
