"""Data: corpora become sentence pairs, tokens, shards and global batches.

In the order of the work: ``corpora`` (with ``readers``, ``grammar`` and ``download``),
``tokenizer``, ``shards``, ``batching``, ``feeding``.
"""
