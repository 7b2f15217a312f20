"""Does a variant train the same model as its reference?"""
