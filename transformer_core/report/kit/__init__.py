"""What the sections share: drawing, formats, languages, style."""
