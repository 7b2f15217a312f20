"""From corpora to global batches, in this order: ``corpus`` (with ``grammar``) gives sentence pairs,
``tokenizing`` and ``sharding`` store their tokens, and ``batching`` forms batches."""
