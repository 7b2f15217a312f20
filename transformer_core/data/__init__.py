"""Data: corpora become sentence pairs, tokens, shards and global batches.

In the order of the work: ``corpus`` (with ``grammar``), ``tokenizing``, ``sharding``, ``batching``.
"""
