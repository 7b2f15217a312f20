"""Where the limit is, a section of the page."""
