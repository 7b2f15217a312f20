"""The contract of the project: pydantic models of studies, variants, run specs and results.

Nothing in this package imports torch or looks at the machine: a study can be checked anywhere.
"""
