"""From what a reader found in a process to rows of the event table: every event with its launch."""
