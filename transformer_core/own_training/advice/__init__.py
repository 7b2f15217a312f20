"""What a user is told: the report, and what to change in the script."""
