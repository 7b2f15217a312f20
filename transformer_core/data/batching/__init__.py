"""From shards to global batches: planning an epoch, forming rows, packing, feeding."""
