"""Weights of a served model on one rank: read by blocks, for good or into a window."""
