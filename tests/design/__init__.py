"""Tests of the design: import direction, names, docstrings, sizes, labels of systems, no network."""
