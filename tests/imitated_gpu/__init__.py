"""A GPU for machines without one: CUDA tensors in the host's memory, computed by the CPU.

``python -m tests.imitated_gpu COMMAND`` runs a command, and the Python programs that it starts, on
such a GPU. What it shows is whether programs work, never how fast: kernels, graphs, compiled layers,
NVML, CUPTI and a second GPU are not imitated. Needs a torch without CUDA, and g++.
"""
