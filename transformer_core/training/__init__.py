"""Assembling and running a training: precision, optimizer, loop, checkpoints, evaluation."""
