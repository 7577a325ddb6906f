"""Runs a program on PyTorch: stage modules, operations, data and measurements."""
