"""Trains and converts tokenizers, and encodes text as token ids."""
