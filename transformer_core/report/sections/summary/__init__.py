"""Summary, a section of the page."""
