"""Translating the test split with a trained model: a job that always ends in a status."""
