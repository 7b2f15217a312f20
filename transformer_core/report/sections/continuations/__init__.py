"""What trained language models make of the beginnings of texts, a section of the page."""
