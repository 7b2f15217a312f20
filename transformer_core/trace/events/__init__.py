"""The event table that both readers make, its ranges of steps, phases and modules, and times."""
