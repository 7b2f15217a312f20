"""Tokenizers, and text to token ids."""
