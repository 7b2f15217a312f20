"""Shards become global batches: planning an epoch, rows, packing, feeding."""
