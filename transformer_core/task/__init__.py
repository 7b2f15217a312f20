"""Tasks: what a batch holds, how a loss comes from it and a model, and how quality is judged."""
