"""Classes of operators, kernels and collectives by their names, and the work they do."""
