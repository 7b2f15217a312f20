"""Assembles and runs a training: precision, optimizer, loop, checkpoints, evaluation."""
