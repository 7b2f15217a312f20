"""The breakdown of the user's step, as it is and as recommended."""
