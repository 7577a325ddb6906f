"""Kernels: loops over flat arrays, run as plain Python or as machine code."""
