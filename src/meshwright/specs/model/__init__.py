"""A model: its blocks, parameters and counts."""
