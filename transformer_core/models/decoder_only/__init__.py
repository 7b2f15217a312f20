"""Language models that are a decoder alone (GPT, arXiv 1706.03762 without its encoder)."""
