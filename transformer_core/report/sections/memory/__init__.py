"""Memory, a section of the page."""
