"""What DistributedDataParallel does with gradient buckets."""
