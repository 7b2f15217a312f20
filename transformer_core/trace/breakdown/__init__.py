"""From the event table to where the time of a step goes."""
