"""Your own training step: certified, timed in turns and made faster.

``task: {kind: import, factory: "my_training:build"}`` in a study. What is tried needs no knowledge
of the model: number formats, optimizer kernels, allocators, data parallelism, a chunked loss where
the output layer is named.
"""
