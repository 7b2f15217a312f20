"""Models of other libraries and of the user."""
