"""Where the time of the user's step goes, as it is and as it is recommended."""
