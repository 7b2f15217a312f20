"""The event table as a file for Perfetto: all ranks on one clock, with what the breakdown knows."""
