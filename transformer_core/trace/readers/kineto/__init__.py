"""Reader of torch.profiler's traces, the JSON files of Kineto."""
