"""Device events: readers of Nsight Systems and Kineto, one event table, its breakdown."""
