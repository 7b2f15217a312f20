"""The sections of the page, a folder for each."""
