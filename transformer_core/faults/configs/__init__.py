"""Study files as nobody should write them: a clear error, or the study that they say."""
