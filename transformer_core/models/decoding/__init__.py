"""Translating with a trained model: beam search and what it keeps between steps."""
