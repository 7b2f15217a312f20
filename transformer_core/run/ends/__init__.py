"""Why processes ended, or could not start, where that is no fault of what they were to do."""
