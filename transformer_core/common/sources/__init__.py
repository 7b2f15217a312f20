"""What programs depend on among the sources, by what the sources say."""
