"""Token ids in checked Arrow shards: writing, reading, verifying, exporting."""
