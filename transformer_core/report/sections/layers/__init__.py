"""The layers of the model, a section of the page."""
