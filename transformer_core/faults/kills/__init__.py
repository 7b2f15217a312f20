"""A small study that is killed again and again: does the same command end in the same results?"""
