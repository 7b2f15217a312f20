"""Shared by the sections: drawing, formats, languages, style."""
