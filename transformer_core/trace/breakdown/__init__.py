"""From the event table to the breakdown of a step's time."""
