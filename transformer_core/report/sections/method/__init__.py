"""Method, a section of the page."""
