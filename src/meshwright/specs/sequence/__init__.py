"""Sequences of different lengths: which ranks share which of a step's, and what that costs."""
