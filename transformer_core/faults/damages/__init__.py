"""Results that are damaged on purpose: does every reader notice?"""
