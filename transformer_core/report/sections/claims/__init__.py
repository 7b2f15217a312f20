"""Claims, a section of the page."""
