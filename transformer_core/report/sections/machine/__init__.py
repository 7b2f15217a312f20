"""Machine, a section of the page."""
